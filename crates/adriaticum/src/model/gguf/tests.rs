//! The check accepts whole models, refuses all other files with a reason, and never panics.

use std::io::Cursor;

use proptest::collection::vec;
use proptest::prelude::*;
use testbed::gguf::GgufFile;

use super::{GgufError, Summary, read};

fn check(bytes: &[u8]) -> Result<Summary, GgufError> {
    read(Cursor::new(bytes), bytes.len() as u64)
}

fn sample() -> GgufFile {
    GgufFile::model("Tiny", 4)
}

#[test]
fn a_model_is_summarized() {
    for version in [2, 3] {
        let summary = check(&sample().version(version).bytes()).unwrap();
        let bytes = summary.bytes;
        assert_eq!(summary.to_string(), format!("Tiny (llama, 136 parameters, Q4_1, {bytes} B)"));
    }
}

#[test]
fn missing_metadata_is_taken_from_the_tensors() {
    let summary = check(&sample().without("general.name").without("general.file_type").bytes()).unwrap();
    assert_eq!((summary.name.as_str(), summary.quantization.as_str()), ("llama", "Q4_1"));
    let large = Summary { parameters: 1_720_000_000, bytes: 1_110_000_000, ..summary };
    assert_eq!(large.to_string(), "llama (llama, 1.7B parameters, Q4_1, 1.11 GB)");
}

#[test]
fn a_name_cannot_send_control_codes_to_a_terminal() {
    let summary = check(&sample().text("general.name", "\x1b[2JTi\nny\x07").bytes()).unwrap();
    assert_eq!(summary.name, "[2JTi ny");
}

#[test]
fn unusable_files_are_refused_with_the_reason() {
    let number = |value: u32| value.to_le_bytes();
    let cases: &[(Vec<u8>, &str)] = &[
        (vec![], "is not a GGUF file"),
        (b"GGU".to_vec(), "is not a GGUF file"),
        (b"PK\x03\x04 and so on".to_vec(), "is not a GGUF file"),
        (sample().version(0).bytes(), "is GGUF of version 0"),
        (sample().version(1).bytes(), "is GGUF of version 1"),
        (sample().version(4).bytes(), "is GGUF of version 4"),
        (sample().version(3_u32.swap_bytes()).bytes(), "is GGUF for big-endian machines"),
        (sample().pair("split.count", 2, &[3, 0]).bytes(), "is one of 3 pieces of a model"),
        (sample().text("general.type", "mmproj").bytes(), "is not a model but a part of the type \"mmproj\""),
        (sample().without("general.architecture").bytes(), "is damaged: it does not name its architecture"),
        (sample().pair("general.architecture", 4, &number(1)).bytes(), "is damaged: a name in it is not text"),
        (sample().pair("general.alignment", 4, &number(0)).bytes(), "is damaged: its alignment is not a power of two"),
        (sample().pair("general.alignment", 4, &number(24)).bytes(), "is damaged: its alignment is not a power of two"),
        (sample().pair("x", 13, &[]).bytes(), "is damaged: it has a value of an unknown kind"),
        (
            sample().pair("x", 9, &[number(9), number(0), number(0)].concat()).bytes(),
            "is damaged: it has a value of an",
        ),
        (sample().pair("x", 9, &[number(8), [255; 4], [255; 4]].concat()).bytes(), "is cut off or damaged"),
        (sample().pair("x", 9, &[number(6), [255; 4], [255; 4]].concat()).bytes(), "is cut off or damaged"),
        (sample().pair("x", 8, &[255; 8]).bytes(), "is cut off or damaged"),
        ([&b"GGUF"[..], &number(3), &[255; 16]].concat(), "is damaged: it counts more parts than any model has"),
        ([&b"GGUF"[..], &number(3), &[0; 16]].concat(), "is damaged: it holds no weights"),
    ];
    for (bytes, says) in cases {
        let message = check(bytes).unwrap_err().to_string();
        assert!(message.starts_with(says), "{says}: {message}");
    }
}

#[test]
fn a_split_count_of_one_is_a_whole_model() {
    assert!(check(&sample().pair("split.count", 2, &[1, 0]).bytes()).is_ok());
}

#[test]
fn a_truncated_model_is_refused() {
    let whole = sample().bytes();
    for length in 0..whole.len() {
        let error = check(&whole[..length]).expect_err("a cut-off model");
        let right = matches!(error, GgufError::NotGguf | GgufError::CutOff { .. });
        assert!(right && (length < 4) == matches!(error, GgufError::NotGguf), "{length}: {error}");
    }
    assert!(check(&whole).is_ok());
}

proptest! {
    #[test]
    fn random_input_does_not_panic(bytes in vec(any::<u8>(), 0..400), header in any::<bool>()) {
        let bytes = if header { [b"GGUF\x03\0\0\0", &bytes[..]].concat() } else { bytes };
        let _ = check(&bytes);
    }

    /// A few changed bytes, most of them in lengths and counts.
    #[test]
    fn a_damaged_model_does_not_panic(changes in vec((0_usize..600, any::<u8>()), 1..8)) {
        let mut bytes = sample().bytes();
        for (place, value) in changes {
            if let Some(byte) = bytes.get_mut(place) {
                *byte = value;
            }
        }
        let _ = check(&bytes);
    }
}
