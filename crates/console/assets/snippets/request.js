const response = await fetch("{base_url}/chat/completions", {
  method: "POST",
  headers: {
    "Authorization": `Bearer ${process.env.ADRIATICUM_API_KEY}`,
    "Content-Type": "application/json",
  },
  body: JSON.stringify({"model": "{model}", "messages": [{"role": "user", "content": "Hello!"}]}),
});
const answer = await response.json();
console.log(answer.choices[0].message.content);
