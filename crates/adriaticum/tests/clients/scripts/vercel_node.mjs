// Vercel's AI SDK.

import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { APICallError, RetryError, generateText } from 'ai';
import { run } from './cases.mjs';

async function ask({ base_url, api_key, content }) {
  const adriaticum = createOpenAICompatible({ name: 'adriaticum', baseURL: base_url, apiKey: api_key });
  const { text, usage } = await generateText({
    model: adriaticum('adriaticum'),
    prompt: content,
    maxOutputTokens: 100,
  });
  return [text, [usage.inputTokens, usage.outputTokens, usage.totalTokens]];
}

await run(ask, (error) => {
  const call = RetryError.isInstance(error) ? error.lastError : error;
  if (!APICallError.isInstance(call)) return { exception: error.name };
  return {
    exception: error.name.replace(/^AI_/, ''),
    status: call.statusCode,
    code: call.data?.error?.code,
    request_id: call.responseHeaders['x-request-id'],
  };
});
