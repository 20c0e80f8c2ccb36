//! Extracts features from a conversation: the wording of the last user turn, its topics, its form, its material, and the
//! earlier turns. A feature is a hash of its name; the name is created only for explanations. Of a long text only the ends
//! are read, so that the time for the largest conversation is bounded.

mod earlier;
mod feature_set;
mod looks;
mod overlap;
mod shape;
mod supplied;
mod topics;
mod turn;
mod wording;

use std::borrow::Cow;

use chat::{Message, Role};

use earlier::Earlier;
pub(super) use feature_set::Features;
use turn::Turn;

use super::lexicon::Lexicon;
use super::material;

/// Of the last user turn.
const MAX_TURN_BYTES: usize = 3072;
/// Of each earlier turn and of material.
const MAX_EARLIER_BYTES: usize = 1536;

/// Adds all features of a conversation. Returns false if it has no user turn.
pub(super) fn extract(messages: &[Message], lexicon: &Lexicon, features: &mut Features) -> bool {
    let Some(last) = messages.iter().rposition(|message| message.role() == Role::User) else { return false };
    let content = &*both_ends(messages[last].content(), MAX_TURN_BYTES);
    let transform = lexicon.find("transform");
    let parts = material::split_material(content, |before| {
        transform.is_some_and(|transform| Turn::read(before, lexicon).concepts().contains(&transform))
    });
    let whole = Turn::read(content, lexicon);
    // Material alone is scored as the request itself.
    let asked = (parts.ask != content && !parts.is_material_only()).then(|| Turn::read(&parts.ask, lexicon));
    let turn = asked.as_ref().unwrap_or(&whole);
    let material_turn = Turn::read(truncate(&parts.material, MAX_EARLIER_BYTES), lexicon);
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
    overlap::in_earlier_turns(turn, &earlier, features);
    overlap::beside_the_question(turn, &material_turn, features);
    supplied::supplied(turn, &material_turn, &concepts, context, lexicon, features);
    true
}

/// Removes the middle of a long text, because requests are at the ends.
fn both_ends(content: &str, max_bytes: usize) -> Cow<'_, str> {
    if content.len() <= max_bytes {
        return Cow::Borrowed(content);
    }
    let head = truncate(content, max_bytes / 4 * 3);
    let tail = content.ceil_char_boundary(content.len() - max_bytes / 4);
    Cow::Owned([head, "\n", &content[tail..]].concat())
}

/// At most `max_bytes` bytes.
fn truncate(content: &str, max_bytes: usize) -> &str {
    &content[..content.floor_char_boundary(max_bytes)]
}
