from openai import OpenAI

client = OpenAI(base_url="{base_url}", api_key="…")
answer = client.chat.completions.create(
    model="{model}",
    messages=[{"role": "user", "content": "Hello!"}],
)
print(answer.choices[0].message.content)
