// OpenAI's library for Node.

import OpenAI from 'openai';
import { run } from './cases.mjs';

async function ask({ base_url, api_key, content }) {
  const client = new OpenAI({ baseURL: base_url, apiKey: api_key });
  const answer = await client.chat.completions.create({
    model: 'adriaticum',
    messages: [{ role: 'user', content }],
    max_tokens: 100,
  });
  const { prompt_tokens, completion_tokens, total_tokens } = answer.usage;
  return [answer.choices[0].message.content, [prompt_tokens, completion_tokens, total_tokens]];
}

await run(ask, (error) => ({
  exception: error.constructor.name,
  status: error.status,
  code: error.code,
  request_id: error.requestID,
}));
