// stmatrix as a CopyAtom: ldmatrix with source and destination exchanged.
#pragma once

#include "moye/arch/copy_sm90.h"
#include "moye/atom/copy_traits.h"

namespace moye {

template <class LoadOp>
struct StoreMatrixTraits {
  using ThrId = typename CopyTraits<LoadOp>::ThrId;
  using SrcLayout = typename CopyTraits<LoadOp>::DstLayout;
  using DstLayout = typename CopyTraits<LoadOp>::SrcLayout;
  using RefLayout = SrcLayout;
};

template <>
struct CopyTraits<SM90_U32x1_STSM_N> : StoreMatrixTraits<SM75_U32x1_LDSM_N> {};
template <>
struct CopyTraits<SM90_U32x2_STSM_N> : StoreMatrixTraits<SM75_U32x2_LDSM_N> {};
template <>
struct CopyTraits<SM90_U32x4_STSM_N> : StoreMatrixTraits<SM75_U32x4_LDSM_N> {};
template <>
struct CopyTraits<SM90_U16x2_STSM_T> : StoreMatrixTraits<SM75_U16x2_LDSM_T> {};
template <>
struct CopyTraits<SM90_U16x4_STSM_T> : StoreMatrixTraits<SM75_U16x4_LDSM_T> {};
template <>
struct CopyTraits<SM90_U16x8_STSM_T> : StoreMatrixTraits<SM75_U16x8_LDSM_T> {};

}  // namespace moye
