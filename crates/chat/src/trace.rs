//! The trace that a request belongs to elsewhere, as W3C's Trace Context writes it: where a caller sends one, whoever is
//! asked on its behalf gets it, too.

/// The longest `tracestate` that is passed on. It is the vendors' own, so a longer one is left out rather than cut.
const MAX_STATE: usize = 512;

/// A place in somebody's trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// Which trace; never all zeroes.
    pub id: [u8; 16],
    /// Which span of it is the one that asks; never all zeroes.
    pub span: [u8; 8],
    /// Whether whoever began the trace wants it to be kept, in the lowest bit.
    pub flags: u8,
    /// What vendors add to it.
    state: Option<Box<str>>,
}

impl Trace {
    /// A place in a trace that goes on with what vendors added to an earlier place.
    pub fn new(id: [u8; 16], span: [u8; 8], flags: u8, earlier: Option<&Self>) -> Self {
        Self { id, span, flags, state: earlier.and_then(|earlier| earlier.state.clone()) }
    }

    /// Reads the headers `traceparent` and `tracestate`; `None` if the former is not valid.
    pub fn parse(parent: &str, state: Option<&str>) -> Option<Self> {
        let fields = parent.as_bytes();
        let (version, rest) = fields.split_at_checked(2)?;
        let version = byte(version)?;
        // Later versions may add fields behind a dash; this one may not.
        if version == 0xff || fields.len() < 55 || (fields.len() > 55 && (version == 0 || fields[55] != b'-')) {
            return None;
        }
        if [rest[0], rest[33], rest[50]] != [b'-'; 3] {
            return None;
        }
        let (mut id, mut span) = ([0; 16], [0; 8]);
        hex(&rest[1..33], &mut id)?;
        hex(&rest[34..50], &mut span)?;
        let flags = byte(&rest[51..53])?;
        if id == [0; 16] || span == [0; 8] {
            return None;
        }
        let is_plain = |text: &&str| text.len() <= MAX_STATE && text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        let state = state.map(str::trim).filter(|text| !text.is_empty()).filter(is_plain);
        Some(Self { id, span, flags, state: state.map(Into::into) })
    }

    /// The header `traceparent`.
    pub fn parent(&self) -> String {
        use std::fmt::Write;
        let mut text = String::with_capacity(55);
        let _ = write!(text, "00-{:032x}-", u128::from_be_bytes(self.id)); // a string takes everything
        let _ = write!(text, "{:016x}-{:02x}", u64::from_be_bytes(self.span), self.flags & 1);
        text
    }

    /// The header `tracestate`, if there is one.
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }
}

fn hex(text: &[u8], into: &mut [u8]) -> Option<()> {
    for (digits, into) in text.chunks_exact(2).zip(into) {
        *into = byte(digits)?;
    }
    Some(())
}

/// Two digits, in lower case as the specification wants them.
fn byte(digits: &[u8]) -> Option<u8> {
    let digit = |at: u8| match at {
        b'0'..=b'9' => Some(at - b'0'),
        b'a'..=b'f' => Some(at - b'a' + 10),
        _ => None,
    };
    Some(digit(digits[0])? << 4 | digit(digits[1])?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn what_is_valid_goes_on_as_it_came() {
        for (given, state, gone_on) in [
            (GOOD, None, None),
            (GOOD, Some("congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"), Some("congo=t61rcWkgMzE,rojo=00f067aa0ba902b7")),
            (GOOD, Some("  "), None),
            (GOOD, Some("a=\u{e9}"), None),
        ] {
            let trace = Trace::parse(given, state).unwrap();
            assert_eq!((trace.parent().as_str(), trace.state()), (given, gone_on));
        }
        assert_eq!(Trace::parse(GOOD, Some(&"a".repeat(513))).unwrap().state(), None);
        let later = GOOD.replacen("00", "cc", 1);
        assert_eq!(Trace::parse(&format!("{later}-what-will-be"), None).unwrap().parent(), GOOD);
        assert_eq!(Trace::parse(&later, None).unwrap().parent(), GOOD);
    }

    #[test]
    fn what_is_not_valid_is_none() {
        for given in [
            "",
            "0",
            "00",
            &GOOD[..54],
            &GOOD.to_uppercase(),
            &format!("{GOOD}-more"),
            &format!("{}.more", GOOD.replacen("00", "01", 1)),
            &GOOD.replacen("00", "ff", 1),
            &GOOD.replace('-', "_"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0g",
        ] {
            assert_eq!(Trace::parse(given, Some("a=b")), None, "{given}");
        }
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(parent in ".{0,80}", state in proptest::option::of(".{0,20}")) {
            if let Some(trace) = Trace::parse(&parent, state.as_deref()) {
                prop_assert_eq!(Trace::parse(&trace.parent(), trace.state()), Some(Trace { flags: trace.flags & 1, ..trace }));
            }
        }
    }
}
