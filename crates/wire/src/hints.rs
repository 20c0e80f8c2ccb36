//! Hints for members that OpenAI's API accepts and this one does not, so that whoever points an existing client here
//! knows what to change. Each is the end of a sentence that names the member.

const NO_STREAMING: &str = "answers come whole, leave it out";
const NO_TOOLS: &str = "no tools are called, leave it out";
const ONE_SAMPLING_PARAMETER: &str = "`temperature` is the only sampling parameter, leave it out";
const NO_PROBABILITIES: &str = "token probabilities are not given, leave it out";
const TEXT_ONLY: &str = "answers are plain text, leave it out and describe the form in a message";
const NO_METADATA: &str = "nothing is stored with a request, leave it out; usage is counted for each API key";
const MAX_TOKENS: &str = "use `max_tokens`";

pub(crate) fn for_body_member(name: &str) -> Option<&'static str> {
    Some(match name {
        "stream" | "stream_options" => NO_STREAMING,
        "max_completion_tokens" | "max_output_tokens" | "max_new_tokens" => MAX_TOKENS,
        "tools" | "tool_choice" | "parallel_tool_calls" | "functions" | "function_call" => NO_TOOLS,
        "web_search_options" => "facts are searched for where the service is set up so, leave it out",
        "n" | "best_of" => "there is one choice, leave it out",
        "response_format" | "text" | "modalities" | "audio" | "verbosity" => TEXT_ONLY,
        "top_p" | "top_k" | "min_p" | "seed" | "presence_penalty" | "frequency_penalty" | "repetition_penalty"
        | "logit_bias" => ONE_SAMPLING_PARAMETER,
        "stop" => "an answer ends by itself or at `max_tokens`, leave it out",
        "logprobs" | "top_logprobs" => NO_PROBABILITIES,
        "user" | "metadata" | "store" | "safety_identifier" | "service_tier" => NO_METADATA,
        "prompt_cache_key" | "prompt_cache_retention" => "common prefixes are shared by themselves, leave it out",
        "reasoning_effort" | "reasoning" => "the model decides how it answers, leave it out",
        "prediction" => "no predicted output is used, leave it out",
        "prompt" | "input" => "use `messages`",
        "system" | "instructions" => "use a message with the role `system`",
        _ => return None,
    })
}

pub(crate) fn for_message_member(name: &str) -> Option<&'static str> {
    Some(match name {
        "name" => "participants are told apart by `role` only, leave it out",
        "tool_calls" | "tool_call_id" | "function_call" => NO_TOOLS,
        "refusal" | "audio" | "annotations" | "reasoning_content" | "reasoning" => {
            "only `role` and `content` of an earlier answer are sent back, leave it out"
        }
        _ => return None,
    })
}

pub(crate) fn for_role(name: &str) -> Option<&'static str> {
    Some(match name {
        "developer" => "use `system`",
        "tool" | "function" => "no tools are called; put results into a `user` message",
        _ => return None,
    })
}
