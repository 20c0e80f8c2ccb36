import OpenAI from "openai";

const client = new OpenAI({ baseURL: "{base_url}", apiKey: process.env.ADRIATICUM_API_KEY });
const answer = await client.chat.completions.create({request});
console.log(answer.choices[0].message.content);
