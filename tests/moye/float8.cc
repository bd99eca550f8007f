// float8 FLOATS CODES: conversions of 8-bit floats on the host.
//   reads floats from FLOATS; to CODES it writes, for each, the bits of e4m3 and e5m2, saturated, then overflowing;
//   then the floats of the 256 values of e4m3 and the 256 of e5m2
#include <fstream>

#include "moye/arch/types.h"

int main(int count, char** arguments) {
  using namespace moye;
  if (count != 3) return 2;
  std::ifstream in(arguments[1], std::ios::binary);
  std::ofstream out(arguments[2], std::ios::binary);
  float value;
  while (in.read(reinterpret_cast<char*>(&value), sizeof(value))) {
    uint8_t const codes[4] = {float_e4m3_t(value).storage, float_e5m2_t(value).storage,
                              float_e4m3_t::from_float_overflowing(value).storage,
                              float_e5m2_t::from_float_overflowing(value).storage};
    out.write(reinterpret_cast<char const*>(codes), sizeof(codes));
  }
  auto write = [&out](float x) { out.write(reinterpret_cast<char const*>(&x), sizeof(x)); };
  for (int bits = 0; bits < 256; ++bits) write(static_cast<float>(float_e4m3_t::bitcast(static_cast<uint8_t>(bits))));
  for (int bits = 0; bits < 256; ++bits) write(static_cast<float>(float_e5m2_t::bitcast(static_cast<uint8_t>(bits))));
  return out.flush() ? 0 : 1;
}
