//! From a conversation to features: what the last user turn says, what it is about, what it looks like, what it was supplied with,
//! and what went before. A feature is a hash of its name; the name itself is only made when somebody wants an explanation.
//!
//! Only so much of a long text is read, so that the time for the longest conversation is bounded.

mod collected;
mod earlier;
mod known;
mod looks;
mod shape;
mod supplied;
mod topics;
mod turn;
mod wording;

use std::borrow::Cow;

use chat::{Message, Role};

pub(super) use collected::Features;
use earlier::Earlier;
use turn::Turn;

use super::lexicon::Lexicon;
use super::material;

/// Bytes of the last user turn that are read.
const LONGEST_TURN: usize = 3072;
/// Bytes of each earlier turn that are read, and of what was brought along.
const LONGEST_EARLIER: usize = 1536;

/// Adds every feature of a conversation that is judged by its last user turn; false if no user says anything.
pub(super) fn extract(messages: &[Message], lexicon: &Lexicon, features: &mut Features) -> bool {
    let Some(last) = messages.iter().rposition(|message| message.role() == Role::User) else { return false };
    let content = &*both_ends(messages[last].content(), LONGEST_TURN);
    let transform = lexicon.find("transform");
    let parts = material::split(content, |before| {
        transform.is_some_and(|transform| Turn::read(before, lexicon).concepts().contains(&transform))
    });
    let whole = Turn::read(content, lexicon);
    // Where there is nothing but material, that is what is judged.
    let asked = (parts.ask != content && !parts.asks_nothing()).then(|| Turn::read(&parts.ask, lexicon));
    let turn = asked.as_ref().unwrap_or(&whole);
    let brought = Turn::read(cut(&parts.material, LONGEST_EARLIER), lexicon);
    let earlier = Earlier::read(&messages[..last], lexicon);
    let context = earlier.context();
    let concepts = turn.concepts();

    wording::words(&whole, context, features);
    wording::spelling(&whole, features);
    wording::edges(&whole, context, features);
    shape::shape(turn, lexicon, features);
    topics::topics(turn, &concepts, context, lexicon, features);
    looks::looks(turn, content, context, features);
    earlier::earlier_turns(turn, &concepts, &earlier, lexicon, features);
    known::in_earlier_turns(turn, &earlier, features);
    known::beside_the_question(turn, &brought, features);
    supplied::supplied(turn, &brought, &concepts, context, lexicon, features);
    true
}

/// A text that is too long without its middle: requests stand at its ends.
fn both_ends(content: &str, longest: usize) -> Cow<'_, str> {
    if content.len() <= longest {
        return Cow::Borrowed(content);
    }
    let head = cut(content, longest / 4 * 3);
    let tail = content.ceil_char_boundary(content.len() - longest / 4);
    Cow::Owned([head, "\n", &content[tail..]].concat())
}

/// The first so many bytes, or a little less.
fn cut(content: &str, longest: usize) -> &str {
    &content[..content.floor_char_boundary(longest)]
}
