//! Hints for members that OpenAI's API accepts and this one does not, for people who migrate an existing client. Each is
//! the end of a sentence that names the member.

const NO_STREAMING: &str = "answers come whole, omit it";
const NO_TOOLS: &str = "tools are not supported, omit it";
const ONE_SAMPLING_PARAMETER: &str = "`temperature` is the only sampling parameter, omit it";
const NO_PROBABILITIES: &str = "token probabilities are not returned, omit it";
const TEXT_ONLY: &str = "answers are plain text, omit it and describe the format in a message";
const NO_METADATA: &str = "no metadata is stored with a request, omit it; usage is counted per API key";
const MAX_TOKENS: &str = "use `max_tokens`";

pub(crate) fn for_body_member(name: &str) -> Option<&'static str> {
    Some(match name {
        "stream" | "stream_options" => NO_STREAMING,
        "max_completion_tokens" | "max_output_tokens" | "max_new_tokens" => MAX_TOKENS,
        "tools" | "tool_choice" | "parallel_tool_calls" | "functions" | "function_call" => NO_TOOLS,
        "web_search_options" => "the operator configures Search, omit it",
        "n" | "best_of" => "there is one choice, omit it",
        "response_format" | "text" | "modalities" | "audio" | "verbosity" => TEXT_ONLY,
        "top_p" | "top_k" | "min_p" | "seed" | "presence_penalty" | "frequency_penalty" | "repetition_penalty"
        | "logit_bias" => ONE_SAMPLING_PARAMETER,
        "stop" => "an answer ends when the model ends it or at `max_tokens`, omit it",
        "logprobs" | "top_logprobs" => NO_PROBABILITIES,
        "user" | "metadata" | "store" | "safety_identifier" | "service_tier" => NO_METADATA,
        "prompt_cache_key" | "prompt_cache_retention" => "common prefixes are shared automatically, omit it",
        "reasoning_effort" | "reasoning" => "the model decides how it answers, omit it",
        "prediction" => "predicted outputs are not used, omit it",
        "prompt" | "input" => "use `messages`",
        "system" | "instructions" => "use a message with the role `system`",
        _ => return None,
    })
}

pub(crate) fn for_message_member(name: &str) -> Option<&'static str> {
    Some(match name {
        "name" => "participants are distinguished only by `role`, omit it",
        "tool_calls" | "tool_call_id" | "function_call" => NO_TOOLS,
        "refusal" | "audio" | "annotations" | "reasoning_content" | "reasoning" => {
            "only `role` and `content` of an earlier answer are sent back, omit it"
        }
        _ => return None,
    })
}

pub(crate) fn for_role(name: &str) -> Option<&'static str> {
    Some(match name {
        "developer" => "use `system`",
        "tool" | "function" => "tools are not supported; put results into a `user` message",
        _ => return None,
    })
}
