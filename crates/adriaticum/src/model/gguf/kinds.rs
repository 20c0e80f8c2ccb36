//! GGUF's numbers for types of values and tensors, from llama.cpp.

pub(super) const TEXT: u32 = 8;
pub(super) const LIST: u32 = 9;

/// The size of a value in bytes, if it is fixed.
pub(super) fn width(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1), // u8, i8, bool
        2 | 3 => Some(2),     // u16, i16
        4..=6 => Some(4),     // u32, i32, f32
        10..=12 => Some(8),   // u64, i64, f64
        _ => None,
    }
}

/// The size of that many weights in bytes; 0 for types that are newer than this table.
pub(super) fn bytes(kind: u32, weights: u64) -> Option<u64> {
    let Some((_, _, block, bytes)) = tensor(kind) else { return Some(0) };
    weights.div_ceil(*block).checked_mul(*bytes)
}

pub(super) fn name(kind: u32) -> String {
    tensor(kind).map_or_else(|| format!("kind {kind}"), |(_, name, ..)| (*name).to_owned())
}

/// The name of `general.file_type`, such as `Q4_K_M` for a mixture that is mostly Q4_K.
pub(super) fn file_type(number: u64) -> Option<&'static str> {
    FILE_TYPES.iter().find(|(known, _)| *known == number).map(|(_, name)| *name)
}

fn tensor(kind: u32) -> Option<&'static (u32, &'static str, u64, u64)> {
    TENSORS.iter().find(|(known, ..)| *known == kind)
}

/// Number, name, weights in a block, bytes of a block.
#[rustfmt::skip]
const TENSORS: &[(u32, &str, u64, u64)] = &[
    (0, "F32", 1, 4), (1, "F16", 1, 2), (2, "Q4_0", 32, 18), (3, "Q4_1", 32, 20), (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24), (8, "Q8_0", 32, 34), (9, "Q8_1", 32, 36), (10, "Q2_K", 256, 84), (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144), (13, "Q5_K", 256, 176), (14, "Q6_K", 256, 210), (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66), (17, "IQ2_XS", 256, 74), (18, "IQ3_XXS", 256, 98), (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18), (21, "IQ3_S", 256, 110), (22, "IQ2_S", 256, 82), (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1), (25, "I16", 1, 2), (26, "I32", 1, 4), (27, "I64", 1, 8), (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56), (30, "BF16", 1, 2), (34, "TQ1_0", 256, 54), (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17), (40, "NVFP4", 64, 36), (41, "Q1_0", 128, 18), (42, "Q2_0", 64, 18),
];

#[rustfmt::skip]
const FILE_TYPES: &[(u64, &str)] = &[
    (0, "F32"), (1, "F16"), (2, "Q4_0"), (3, "Q4_1"), (7, "Q8_0"), (8, "Q5_0"), (9, "Q5_1"), (10, "Q2_K"),
    (11, "Q3_K_S"), (12, "Q3_K_M"), (13, "Q3_K_L"), (14, "Q4_K_S"), (15, "Q4_K_M"), (16, "Q5_K_S"), (17, "Q5_K_M"),
    (18, "Q6_K"), (19, "IQ2_XXS"), (20, "IQ2_XS"), (21, "Q2_K_S"), (22, "IQ3_XS"), (23, "IQ3_XXS"), (24, "IQ1_S"),
    (25, "IQ4_NL"), (26, "IQ3_S"), (27, "IQ3_M"), (28, "IQ2_S"), (29, "IQ2_M"), (30, "IQ4_XS"), (31, "IQ1_M"),
    (32, "BF16"), (36, "TQ1_0"), (37, "TQ2_0"), (38, "MXFP4"), (39, "NVFP4"), (40, "Q1_0"), (41, "Q2_0"),
];
