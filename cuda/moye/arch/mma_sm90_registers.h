// The register lists of wgmma, for mma_sm90.h alone. Written by tools/generate_wgmma.py; tests/build/test_wgmma.py runs
// it again and compares.
//   MOYE_WGMMA_LIST_n                       "%0, %1, ..." of n registers
//   MOYE_WGMMA_D_n(constraint)              the operands d[0], d[1], ... of an asm statement
//   MOYE_WGMMA_TABLE(statement)             statement(type, constraint, n, the numbers of the operands behind d)
#pragma once

// clang-format off
#define MOYE_WGMMA_LIST_2 "%0, %1"
#define MOYE_WGMMA_LIST_4 MOYE_WGMMA_LIST_2 ", %2, %3"
#define MOYE_WGMMA_LIST_6 MOYE_WGMMA_LIST_4 ", %4, %5"
#define MOYE_WGMMA_LIST_8 MOYE_WGMMA_LIST_6 ", %6, %7"
#define MOYE_WGMMA_LIST_10 MOYE_WGMMA_LIST_8 ", %8, %9"
#define MOYE_WGMMA_LIST_12 MOYE_WGMMA_LIST_10 ", %10, %11"
#define MOYE_WGMMA_LIST_14 MOYE_WGMMA_LIST_12 ", %12, %13"
#define MOYE_WGMMA_LIST_16 MOYE_WGMMA_LIST_14 ", %14, %15"
#define MOYE_WGMMA_LIST_18 MOYE_WGMMA_LIST_16 ", %16, %17"
#define MOYE_WGMMA_LIST_20 MOYE_WGMMA_LIST_18 ", %18, %19"
#define MOYE_WGMMA_LIST_22 MOYE_WGMMA_LIST_20 ", %20, %21"
#define MOYE_WGMMA_LIST_24 MOYE_WGMMA_LIST_22 ", %22, %23"
#define MOYE_WGMMA_LIST_26 MOYE_WGMMA_LIST_24 ", %24, %25"
#define MOYE_WGMMA_LIST_28 MOYE_WGMMA_LIST_26 ", %26, %27"
#define MOYE_WGMMA_LIST_30 MOYE_WGMMA_LIST_28 ", %28, %29"
#define MOYE_WGMMA_LIST_32 MOYE_WGMMA_LIST_30 ", %30, %31"
#define MOYE_WGMMA_LIST_34 MOYE_WGMMA_LIST_32 ", %32, %33"
#define MOYE_WGMMA_LIST_36 MOYE_WGMMA_LIST_34 ", %34, %35"
#define MOYE_WGMMA_LIST_38 MOYE_WGMMA_LIST_36 ", %36, %37"
#define MOYE_WGMMA_LIST_40 MOYE_WGMMA_LIST_38 ", %38, %39"
#define MOYE_WGMMA_LIST_42 MOYE_WGMMA_LIST_40 ", %40, %41"
#define MOYE_WGMMA_LIST_44 MOYE_WGMMA_LIST_42 ", %42, %43"
#define MOYE_WGMMA_LIST_46 MOYE_WGMMA_LIST_44 ", %44, %45"
#define MOYE_WGMMA_LIST_48 MOYE_WGMMA_LIST_46 ", %46, %47"
#define MOYE_WGMMA_LIST_50 MOYE_WGMMA_LIST_48 ", %48, %49"
#define MOYE_WGMMA_LIST_52 MOYE_WGMMA_LIST_50 ", %50, %51"
#define MOYE_WGMMA_LIST_54 MOYE_WGMMA_LIST_52 ", %52, %53"
#define MOYE_WGMMA_LIST_56 MOYE_WGMMA_LIST_54 ", %54, %55"
#define MOYE_WGMMA_LIST_58 MOYE_WGMMA_LIST_56 ", %56, %57"
#define MOYE_WGMMA_LIST_60 MOYE_WGMMA_LIST_58 ", %58, %59"
#define MOYE_WGMMA_LIST_62 MOYE_WGMMA_LIST_60 ", %60, %61"
#define MOYE_WGMMA_LIST_64 MOYE_WGMMA_LIST_62 ", %62, %63"
#define MOYE_WGMMA_LIST_66 MOYE_WGMMA_LIST_64 ", %64, %65"
#define MOYE_WGMMA_LIST_68 MOYE_WGMMA_LIST_66 ", %66, %67"
#define MOYE_WGMMA_LIST_70 MOYE_WGMMA_LIST_68 ", %68, %69"
#define MOYE_WGMMA_LIST_72 MOYE_WGMMA_LIST_70 ", %70, %71"
#define MOYE_WGMMA_LIST_74 MOYE_WGMMA_LIST_72 ", %72, %73"
#define MOYE_WGMMA_LIST_76 MOYE_WGMMA_LIST_74 ", %74, %75"
#define MOYE_WGMMA_LIST_78 MOYE_WGMMA_LIST_76 ", %76, %77"
#define MOYE_WGMMA_LIST_80 MOYE_WGMMA_LIST_78 ", %78, %79"
#define MOYE_WGMMA_LIST_82 MOYE_WGMMA_LIST_80 ", %80, %81"
#define MOYE_WGMMA_LIST_84 MOYE_WGMMA_LIST_82 ", %82, %83"
#define MOYE_WGMMA_LIST_86 MOYE_WGMMA_LIST_84 ", %84, %85"
#define MOYE_WGMMA_LIST_88 MOYE_WGMMA_LIST_86 ", %86, %87"
#define MOYE_WGMMA_LIST_90 MOYE_WGMMA_LIST_88 ", %88, %89"
#define MOYE_WGMMA_LIST_92 MOYE_WGMMA_LIST_90 ", %90, %91"
#define MOYE_WGMMA_LIST_94 MOYE_WGMMA_LIST_92 ", %92, %93"
#define MOYE_WGMMA_LIST_96 MOYE_WGMMA_LIST_94 ", %94, %95"
#define MOYE_WGMMA_LIST_98 MOYE_WGMMA_LIST_96 ", %96, %97"
#define MOYE_WGMMA_LIST_100 MOYE_WGMMA_LIST_98 ", %98, %99"
#define MOYE_WGMMA_LIST_102 MOYE_WGMMA_LIST_100 ", %100, %101"
#define MOYE_WGMMA_LIST_104 MOYE_WGMMA_LIST_102 ", %102, %103"
#define MOYE_WGMMA_LIST_106 MOYE_WGMMA_LIST_104 ", %104, %105"
#define MOYE_WGMMA_LIST_108 MOYE_WGMMA_LIST_106 ", %106, %107"
#define MOYE_WGMMA_LIST_110 MOYE_WGMMA_LIST_108 ", %108, %109"
#define MOYE_WGMMA_LIST_112 MOYE_WGMMA_LIST_110 ", %110, %111"
#define MOYE_WGMMA_LIST_114 MOYE_WGMMA_LIST_112 ", %112, %113"
#define MOYE_WGMMA_LIST_116 MOYE_WGMMA_LIST_114 ", %114, %115"
#define MOYE_WGMMA_LIST_118 MOYE_WGMMA_LIST_116 ", %116, %117"
#define MOYE_WGMMA_LIST_120 MOYE_WGMMA_LIST_118 ", %118, %119"
#define MOYE_WGMMA_LIST_122 MOYE_WGMMA_LIST_120 ", %120, %121"
#define MOYE_WGMMA_LIST_124 MOYE_WGMMA_LIST_122 ", %122, %123"
#define MOYE_WGMMA_LIST_126 MOYE_WGMMA_LIST_124 ", %124, %125"
#define MOYE_WGMMA_LIST_128 MOYE_WGMMA_LIST_126 ", %126, %127"

#define MOYE_WGMMA_D_2(c) c(d[0]), c(d[1])
#define MOYE_WGMMA_D_4(c) MOYE_WGMMA_D_2(c), c(d[2]), c(d[3])
#define MOYE_WGMMA_D_6(c) MOYE_WGMMA_D_4(c), c(d[4]), c(d[5])
#define MOYE_WGMMA_D_8(c) MOYE_WGMMA_D_6(c), c(d[6]), c(d[7])
#define MOYE_WGMMA_D_10(c) MOYE_WGMMA_D_8(c), c(d[8]), c(d[9])
#define MOYE_WGMMA_D_12(c) MOYE_WGMMA_D_10(c), c(d[10]), c(d[11])
#define MOYE_WGMMA_D_14(c) MOYE_WGMMA_D_12(c), c(d[12]), c(d[13])
#define MOYE_WGMMA_D_16(c) MOYE_WGMMA_D_14(c), c(d[14]), c(d[15])
#define MOYE_WGMMA_D_18(c) MOYE_WGMMA_D_16(c), c(d[16]), c(d[17])
#define MOYE_WGMMA_D_20(c) MOYE_WGMMA_D_18(c), c(d[18]), c(d[19])
#define MOYE_WGMMA_D_22(c) MOYE_WGMMA_D_20(c), c(d[20]), c(d[21])
#define MOYE_WGMMA_D_24(c) MOYE_WGMMA_D_22(c), c(d[22]), c(d[23])
#define MOYE_WGMMA_D_26(c) MOYE_WGMMA_D_24(c), c(d[24]), c(d[25])
#define MOYE_WGMMA_D_28(c) MOYE_WGMMA_D_26(c), c(d[26]), c(d[27])
#define MOYE_WGMMA_D_30(c) MOYE_WGMMA_D_28(c), c(d[28]), c(d[29])
#define MOYE_WGMMA_D_32(c) MOYE_WGMMA_D_30(c), c(d[30]), c(d[31])
#define MOYE_WGMMA_D_34(c) MOYE_WGMMA_D_32(c), c(d[32]), c(d[33])
#define MOYE_WGMMA_D_36(c) MOYE_WGMMA_D_34(c), c(d[34]), c(d[35])
#define MOYE_WGMMA_D_38(c) MOYE_WGMMA_D_36(c), c(d[36]), c(d[37])
#define MOYE_WGMMA_D_40(c) MOYE_WGMMA_D_38(c), c(d[38]), c(d[39])
#define MOYE_WGMMA_D_42(c) MOYE_WGMMA_D_40(c), c(d[40]), c(d[41])
#define MOYE_WGMMA_D_44(c) MOYE_WGMMA_D_42(c), c(d[42]), c(d[43])
#define MOYE_WGMMA_D_46(c) MOYE_WGMMA_D_44(c), c(d[44]), c(d[45])
#define MOYE_WGMMA_D_48(c) MOYE_WGMMA_D_46(c), c(d[46]), c(d[47])
#define MOYE_WGMMA_D_50(c) MOYE_WGMMA_D_48(c), c(d[48]), c(d[49])
#define MOYE_WGMMA_D_52(c) MOYE_WGMMA_D_50(c), c(d[50]), c(d[51])
#define MOYE_WGMMA_D_54(c) MOYE_WGMMA_D_52(c), c(d[52]), c(d[53])
#define MOYE_WGMMA_D_56(c) MOYE_WGMMA_D_54(c), c(d[54]), c(d[55])
#define MOYE_WGMMA_D_58(c) MOYE_WGMMA_D_56(c), c(d[56]), c(d[57])
#define MOYE_WGMMA_D_60(c) MOYE_WGMMA_D_58(c), c(d[58]), c(d[59])
#define MOYE_WGMMA_D_62(c) MOYE_WGMMA_D_60(c), c(d[60]), c(d[61])
#define MOYE_WGMMA_D_64(c) MOYE_WGMMA_D_62(c), c(d[62]), c(d[63])
#define MOYE_WGMMA_D_66(c) MOYE_WGMMA_D_64(c), c(d[64]), c(d[65])
#define MOYE_WGMMA_D_68(c) MOYE_WGMMA_D_66(c), c(d[66]), c(d[67])
#define MOYE_WGMMA_D_70(c) MOYE_WGMMA_D_68(c), c(d[68]), c(d[69])
#define MOYE_WGMMA_D_72(c) MOYE_WGMMA_D_70(c), c(d[70]), c(d[71])
#define MOYE_WGMMA_D_74(c) MOYE_WGMMA_D_72(c), c(d[72]), c(d[73])
#define MOYE_WGMMA_D_76(c) MOYE_WGMMA_D_74(c), c(d[74]), c(d[75])
#define MOYE_WGMMA_D_78(c) MOYE_WGMMA_D_76(c), c(d[76]), c(d[77])
#define MOYE_WGMMA_D_80(c) MOYE_WGMMA_D_78(c), c(d[78]), c(d[79])
#define MOYE_WGMMA_D_82(c) MOYE_WGMMA_D_80(c), c(d[80]), c(d[81])
#define MOYE_WGMMA_D_84(c) MOYE_WGMMA_D_82(c), c(d[82]), c(d[83])
#define MOYE_WGMMA_D_86(c) MOYE_WGMMA_D_84(c), c(d[84]), c(d[85])
#define MOYE_WGMMA_D_88(c) MOYE_WGMMA_D_86(c), c(d[86]), c(d[87])
#define MOYE_WGMMA_D_90(c) MOYE_WGMMA_D_88(c), c(d[88]), c(d[89])
#define MOYE_WGMMA_D_92(c) MOYE_WGMMA_D_90(c), c(d[90]), c(d[91])
#define MOYE_WGMMA_D_94(c) MOYE_WGMMA_D_92(c), c(d[92]), c(d[93])
#define MOYE_WGMMA_D_96(c) MOYE_WGMMA_D_94(c), c(d[94]), c(d[95])
#define MOYE_WGMMA_D_98(c) MOYE_WGMMA_D_96(c), c(d[96]), c(d[97])
#define MOYE_WGMMA_D_100(c) MOYE_WGMMA_D_98(c), c(d[98]), c(d[99])
#define MOYE_WGMMA_D_102(c) MOYE_WGMMA_D_100(c), c(d[100]), c(d[101])
#define MOYE_WGMMA_D_104(c) MOYE_WGMMA_D_102(c), c(d[102]), c(d[103])
#define MOYE_WGMMA_D_106(c) MOYE_WGMMA_D_104(c), c(d[104]), c(d[105])
#define MOYE_WGMMA_D_108(c) MOYE_WGMMA_D_106(c), c(d[106]), c(d[107])
#define MOYE_WGMMA_D_110(c) MOYE_WGMMA_D_108(c), c(d[108]), c(d[109])
#define MOYE_WGMMA_D_112(c) MOYE_WGMMA_D_110(c), c(d[110]), c(d[111])
#define MOYE_WGMMA_D_114(c) MOYE_WGMMA_D_112(c), c(d[112]), c(d[113])
#define MOYE_WGMMA_D_116(c) MOYE_WGMMA_D_114(c), c(d[114]), c(d[115])
#define MOYE_WGMMA_D_118(c) MOYE_WGMMA_D_116(c), c(d[116]), c(d[117])
#define MOYE_WGMMA_D_120(c) MOYE_WGMMA_D_118(c), c(d[118]), c(d[119])
#define MOYE_WGMMA_D_122(c) MOYE_WGMMA_D_120(c), c(d[120]), c(d[121])
#define MOYE_WGMMA_D_124(c) MOYE_WGMMA_D_122(c), c(d[122]), c(d[123])
#define MOYE_WGMMA_D_126(c) MOYE_WGMMA_D_124(c), c(d[124]), c(d[125])
#define MOYE_WGMMA_D_128(c) MOYE_WGMMA_D_126(c), c(d[126]), c(d[127])

#define MOYE_WGMMA_TABLE(statement) \
  statement(float, "+f", 4, "%4", "%5", "%6", "%7", "%8", "%9", "%10", "%11", "%12", "%13", "%14", "%15", "%16", "%17") \
  statement(float, "+f", 8, "%8", "%9", "%10", "%11", "%12", "%13", "%14", "%15", "%16", "%17", "%18", "%19", "%20", "%21") \
  statement(float, "+f", 12, "%12", "%13", "%14", "%15", "%16", "%17", "%18", "%19", "%20", "%21", "%22", "%23", "%24", "%25") \
  statement(float, "+f", 16, "%16", "%17", "%18", "%19", "%20", "%21", "%22", "%23", "%24", "%25", "%26", "%27", "%28", "%29") \
  statement(float, "+f", 20, "%20", "%21", "%22", "%23", "%24", "%25", "%26", "%27", "%28", "%29", "%30", "%31", "%32", "%33") \
  statement(float, "+f", 24, "%24", "%25", "%26", "%27", "%28", "%29", "%30", "%31", "%32", "%33", "%34", "%35", "%36", "%37") \
  statement(float, "+f", 28, "%28", "%29", "%30", "%31", "%32", "%33", "%34", "%35", "%36", "%37", "%38", "%39", "%40", "%41") \
  statement(float, "+f", 32, "%32", "%33", "%34", "%35", "%36", "%37", "%38", "%39", "%40", "%41", "%42", "%43", "%44", "%45") \
  statement(float, "+f", 36, "%36", "%37", "%38", "%39", "%40", "%41", "%42", "%43", "%44", "%45", "%46", "%47", "%48", "%49") \
  statement(float, "+f", 40, "%40", "%41", "%42", "%43", "%44", "%45", "%46", "%47", "%48", "%49", "%50", "%51", "%52", "%53") \
  statement(float, "+f", 44, "%44", "%45", "%46", "%47", "%48", "%49", "%50", "%51", "%52", "%53", "%54", "%55", "%56", "%57") \
  statement(float, "+f", 48, "%48", "%49", "%50", "%51", "%52", "%53", "%54", "%55", "%56", "%57", "%58", "%59", "%60", "%61") \
  statement(float, "+f", 52, "%52", "%53", "%54", "%55", "%56", "%57", "%58", "%59", "%60", "%61", "%62", "%63", "%64", "%65") \
  statement(float, "+f", 56, "%56", "%57", "%58", "%59", "%60", "%61", "%62", "%63", "%64", "%65", "%66", "%67", "%68", "%69") \
  statement(float, "+f", 60, "%60", "%61", "%62", "%63", "%64", "%65", "%66", "%67", "%68", "%69", "%70", "%71", "%72", "%73") \
  statement(float, "+f", 64, "%64", "%65", "%66", "%67", "%68", "%69", "%70", "%71", "%72", "%73", "%74", "%75", "%76", "%77") \
  statement(float, "+f", 68, "%68", "%69", "%70", "%71", "%72", "%73", "%74", "%75", "%76", "%77", "%78", "%79", "%80", "%81") \
  statement(float, "+f", 72, "%72", "%73", "%74", "%75", "%76", "%77", "%78", "%79", "%80", "%81", "%82", "%83", "%84", "%85") \
  statement(float, "+f", 76, "%76", "%77", "%78", "%79", "%80", "%81", "%82", "%83", "%84", "%85", "%86", "%87", "%88", "%89") \
  statement(float, "+f", 80, "%80", "%81", "%82", "%83", "%84", "%85", "%86", "%87", "%88", "%89", "%90", "%91", "%92", "%93") \
  statement(float, "+f", 84, "%84", "%85", "%86", "%87", "%88", "%89", "%90", "%91", "%92", "%93", "%94", "%95", "%96", "%97") \
  statement(float, "+f", 88, "%88", "%89", "%90", "%91", "%92", "%93", "%94", "%95", "%96", "%97", "%98", "%99", "%100", "%101") \
  statement(float, "+f", 92, "%92", "%93", "%94", "%95", "%96", "%97", "%98", "%99", "%100", "%101", "%102", "%103", "%104", "%105") \
  statement(float, "+f", 96, "%96", "%97", "%98", "%99", "%100", "%101", "%102", "%103", "%104", "%105", "%106", "%107", "%108", "%109") \
  statement(float, "+f", 100, "%100", "%101", "%102", "%103", "%104", "%105", "%106", "%107", "%108", "%109", "%110", "%111", "%112", "%113") \
  statement(float, "+f", 104, "%104", "%105", "%106", "%107", "%108", "%109", "%110", "%111", "%112", "%113", "%114", "%115", "%116", "%117") \
  statement(float, "+f", 108, "%108", "%109", "%110", "%111", "%112", "%113", "%114", "%115", "%116", "%117", "%118", "%119", "%120", "%121") \
  statement(float, "+f", 112, "%112", "%113", "%114", "%115", "%116", "%117", "%118", "%119", "%120", "%121", "%122", "%123", "%124", "%125") \
  statement(float, "+f", 116, "%116", "%117", "%118", "%119", "%120", "%121", "%122", "%123", "%124", "%125", "%126", "%127", "%128", "%129") \
  statement(float, "+f", 120, "%120", "%121", "%122", "%123", "%124", "%125", "%126", "%127", "%128", "%129", "%130", "%131", "%132", "%133") \
  statement(float, "+f", 124, "%124", "%125", "%126", "%127", "%128", "%129", "%130", "%131", "%132", "%133", "%134", "%135", "%136", "%137") \
  statement(float, "+f", 128, "%128", "%129", "%130", "%131", "%132", "%133", "%134", "%135", "%136", "%137", "%138", "%139", "%140", "%141") \
  statement(uint32_t, "+r", 2, "%2", "%3", "%4", "%5", "%6", "%7", "%8", "%9", "%10", "%11", "%12", "%13", "%14", "%15") \
  statement(uint32_t, "+r", 4, "%4", "%5", "%6", "%7", "%8", "%9", "%10", "%11", "%12", "%13", "%14", "%15", "%16", "%17") \
  statement(uint32_t, "+r", 6, "%6", "%7", "%8", "%9", "%10", "%11", "%12", "%13", "%14", "%15", "%16", "%17", "%18", "%19") \
  statement(uint32_t, "+r", 8, "%8", "%9", "%10", "%11", "%12", "%13", "%14", "%15", "%16", "%17", "%18", "%19", "%20", "%21") \
  statement(uint32_t, "+r", 10, "%10", "%11", "%12", "%13", "%14", "%15", "%16", "%17", "%18", "%19", "%20", "%21", "%22", "%23") \
  statement(uint32_t, "+r", 12, "%12", "%13", "%14", "%15", "%16", "%17", "%18", "%19", "%20", "%21", "%22", "%23", "%24", "%25") \
  statement(uint32_t, "+r", 14, "%14", "%15", "%16", "%17", "%18", "%19", "%20", "%21", "%22", "%23", "%24", "%25", "%26", "%27") \
  statement(uint32_t, "+r", 16, "%16", "%17", "%18", "%19", "%20", "%21", "%22", "%23", "%24", "%25", "%26", "%27", "%28", "%29") \
  statement(uint32_t, "+r", 18, "%18", "%19", "%20", "%21", "%22", "%23", "%24", "%25", "%26", "%27", "%28", "%29", "%30", "%31") \
  statement(uint32_t, "+r", 20, "%20", "%21", "%22", "%23", "%24", "%25", "%26", "%27", "%28", "%29", "%30", "%31", "%32", "%33") \
  statement(uint32_t, "+r", 22, "%22", "%23", "%24", "%25", "%26", "%27", "%28", "%29", "%30", "%31", "%32", "%33", "%34", "%35") \
  statement(uint32_t, "+r", 24, "%24", "%25", "%26", "%27", "%28", "%29", "%30", "%31", "%32", "%33", "%34", "%35", "%36", "%37") \
  statement(uint32_t, "+r", 26, "%26", "%27", "%28", "%29", "%30", "%31", "%32", "%33", "%34", "%35", "%36", "%37", "%38", "%39") \
  statement(uint32_t, "+r", 28, "%28", "%29", "%30", "%31", "%32", "%33", "%34", "%35", "%36", "%37", "%38", "%39", "%40", "%41") \
  statement(uint32_t, "+r", 30, "%30", "%31", "%32", "%33", "%34", "%35", "%36", "%37", "%38", "%39", "%40", "%41", "%42", "%43") \
  statement(uint32_t, "+r", 32, "%32", "%33", "%34", "%35", "%36", "%37", "%38", "%39", "%40", "%41", "%42", "%43", "%44", "%45") \
  statement(uint32_t, "+r", 34, "%34", "%35", "%36", "%37", "%38", "%39", "%40", "%41", "%42", "%43", "%44", "%45", "%46", "%47") \
  statement(uint32_t, "+r", 36, "%36", "%37", "%38", "%39", "%40", "%41", "%42", "%43", "%44", "%45", "%46", "%47", "%48", "%49") \
  statement(uint32_t, "+r", 38, "%38", "%39", "%40", "%41", "%42", "%43", "%44", "%45", "%46", "%47", "%48", "%49", "%50", "%51") \
  statement(uint32_t, "+r", 40, "%40", "%41", "%42", "%43", "%44", "%45", "%46", "%47", "%48", "%49", "%50", "%51", "%52", "%53") \
  statement(uint32_t, "+r", 42, "%42", "%43", "%44", "%45", "%46", "%47", "%48", "%49", "%50", "%51", "%52", "%53", "%54", "%55") \
  statement(uint32_t, "+r", 44, "%44", "%45", "%46", "%47", "%48", "%49", "%50", "%51", "%52", "%53", "%54", "%55", "%56", "%57") \
  statement(uint32_t, "+r", 46, "%46", "%47", "%48", "%49", "%50", "%51", "%52", "%53", "%54", "%55", "%56", "%57", "%58", "%59") \
  statement(uint32_t, "+r", 48, "%48", "%49", "%50", "%51", "%52", "%53", "%54", "%55", "%56", "%57", "%58", "%59", "%60", "%61") \
  statement(uint32_t, "+r", 50, "%50", "%51", "%52", "%53", "%54", "%55", "%56", "%57", "%58", "%59", "%60", "%61", "%62", "%63") \
  statement(uint32_t, "+r", 52, "%52", "%53", "%54", "%55", "%56", "%57", "%58", "%59", "%60", "%61", "%62", "%63", "%64", "%65") \
  statement(uint32_t, "+r", 54, "%54", "%55", "%56", "%57", "%58", "%59", "%60", "%61", "%62", "%63", "%64", "%65", "%66", "%67") \
  statement(uint32_t, "+r", 56, "%56", "%57", "%58", "%59", "%60", "%61", "%62", "%63", "%64", "%65", "%66", "%67", "%68", "%69") \
  statement(uint32_t, "+r", 58, "%58", "%59", "%60", "%61", "%62", "%63", "%64", "%65", "%66", "%67", "%68", "%69", "%70", "%71") \
  statement(uint32_t, "+r", 60, "%60", "%61", "%62", "%63", "%64", "%65", "%66", "%67", "%68", "%69", "%70", "%71", "%72", "%73") \
  statement(uint32_t, "+r", 62, "%62", "%63", "%64", "%65", "%66", "%67", "%68", "%69", "%70", "%71", "%72", "%73", "%74", "%75") \
  statement(uint32_t, "+r", 64, "%64", "%65", "%66", "%67", "%68", "%69", "%70", "%71", "%72", "%73", "%74", "%75", "%76", "%77") \
  statement(uint32_t, "+r", 72, "%72", "%73", "%74", "%75", "%76", "%77", "%78", "%79", "%80", "%81", "%82", "%83", "%84", "%85") \
  statement(uint32_t, "+r", 80, "%80", "%81", "%82", "%83", "%84", "%85", "%86", "%87", "%88", "%89", "%90", "%91", "%92", "%93") \
  statement(uint32_t, "+r", 88, "%88", "%89", "%90", "%91", "%92", "%93", "%94", "%95", "%96", "%97", "%98", "%99", "%100", "%101") \
  statement(uint32_t, "+r", 96, "%96", "%97", "%98", "%99", "%100", "%101", "%102", "%103", "%104", "%105", "%106", "%107", "%108", "%109") \
  statement(uint32_t, "+r", 104, "%104", "%105", "%106", "%107", "%108", "%109", "%110", "%111", "%112", "%113", "%114", "%115", "%116", "%117") \
  statement(uint32_t, "+r", 112, "%112", "%113", "%114", "%115", "%116", "%117", "%118", "%119", "%120", "%121", "%122", "%123", "%124", "%125") \
  statement(uint32_t, "+r", 120, "%120", "%121", "%122", "%123", "%124", "%125", "%126", "%127", "%128", "%129", "%130", "%131", "%132", "%133") \
  statement(uint32_t, "+r", 128, "%128", "%129", "%130", "%131", "%132", "%133", "%134", "%135", "%136", "%137", "%138", "%139", "%140", "%141")
// clang-format on
