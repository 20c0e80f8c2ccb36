import os

from openai import OpenAI

client = OpenAI(base_url="{base_url}", api_key=os.environ["ADRIATICUM_API_KEY"])
answer = client.chat.completions.create(
{arguments}
)
print(answer.choices[0].message.content)
