//! The client `async-openai`, a crate.

use async_openai::Client;
use async_openai::config::OpenAIConfig;
use async_openai::error::OpenAIError;
use async_openai::types::chat::{
    ChatCompletionRequestUserMessage, CreateChatCompletionRequestArgs, CreateChatCompletionResponse,
};

use crate::behaviour::End;
use crate::cases::Case;

/// Sends the requests of all cases at the same time.
pub(crate) fn run(cases: &[Case]) -> Vec<End> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let asking: Vec<_> = cases
        .iter()
        .map(|case| {
            let (base_url, key, content) = (case.base_url.clone(), case.api_key.clone(), case.content.clone());
            runtime.spawn(async move { ask(&base_url, &key, &content).await })
        })
        .collect();
    let ends = cases.iter().zip(asking);
    ends.map(|(case, asking)| end(case.name, runtime.block_on(asking).unwrap())).collect()
}

fn end(case: &str, result: Result<CreateChatCompletionResponse, OpenAIError>) -> End {
    let case = case.to_owned();
    match result {
        Ok(response) => {
            let usage = response.usage.unwrap();
            let tokens =
                [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens].map(|count| Some(count.into()));
            End { case, text: response.choices[0].message.content.clone(), tokens: Some(tokens), ..End::default() }
        }
        Err(error) => {
            let said = Some(format!("{error:?}"));
            let (exception, status, code) = match error {
                OpenAIError::ApiError(error) => ("ApiError", Some(error.status_code.as_u16()), error.api_error.code),
                OpenAIError::JSONDeserialize(..) => ("JSONDeserialize", None, None),
                _ => ("another", None, None),
            };
            End { case, exception: Some(exception.into()), status, code, said, ..End::default() }
        }
    }
}

async fn ask(base_url: &str, api_key: &str, content: &str) -> Result<CreateChatCompletionResponse, OpenAIError> {
    let client = Client::with_config(OpenAIConfig::new().with_api_base(base_url).with_api_key(api_key));
    let request = CreateChatCompletionRequestArgs::default()
        .model("adriaticum")
        .messages([ChatCompletionRequestUserMessage::from(content).into()])
        .max_tokens(100_u32)
        .build()?;
    client.chat().create(request).await
}
