// SPDX-License-Identifier: Apache-2.0

// The same conversations as chat.py, with OpenAI's SDK for Node: chat.cjs BASE_URL CONVERSATIONS
const { OpenAI } = require("openai");

const [baseURL, conversations] = process.argv.slice(2);
const client = new OpenAI({ baseURL: baseURL + "/v1", apiKey: "none", maxRetries: 0, timeout: 120_000 });

async function ask(model, messages, options) {
  const { data, response } = await client.chat.completions
    .create({ model, messages, max_tokens: 16, temperature: 0, ...options })
    .withResponse();
  const answer = { text: "", finish: null, events: 0, usage: null, model: data.model, endpoint: response.headers.get("x-penstock-endpoint") ?? "" };
  if (!options.stream) {
    const choice = data.choices[0];
    return { ...answer, text: choice.message.content, finish: choice.finish_reason, events: 1, usage: data.usage };
  }
  for await (const event of data) {
    answer.events++;
    answer.model = answer.model === undefined || answer.model === event.model ? event.model : `${answer.model}, ${event.model}`;
    answer.usage = event.usage ?? answer.usage;
    for (const choice of event.choices) {
      answer.text += choice.delta.content ?? "";
      answer.finish = choice.finish_reason ?? answer.finish;
    }
  }
  return answer;
}

async function main() {
  const model = (await client.models.list()).data[0].id;
  const turns = [{}, { stream: true, stream_options: { include_usage: true } }, { stream: true }];
  for (let c = 0; c < Number(conversations); c++) {
    const messages = [{ role: "user", content: `node ${baseURL} ${c}: ` + `word${c} `.repeat(500) }];
    for (const [i, options] of turns.entries()) {
      const { usage, ...answer } = await ask(model, messages, options);
      console.log(JSON.stringify({
        conversation: c,
        turn: i + 1,
        ...answer,
        usage: usage !== null,
        prompt_tokens: usage?.prompt_tokens ?? 0,
        completion_tokens: usage?.completion_tokens ?? 0,
        cached_tokens: usage?.prompt_tokens_details?.cached_tokens ?? 0,
      }));
      messages.push({ role: "assistant", content: answer.text }, { role: "user", content: `go on with ${i + 1}` });
    }
  }
}

main().catch((err) => {
  console.error(err);
  process.exit(1);
});
