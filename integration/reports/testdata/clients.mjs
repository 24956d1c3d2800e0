// Sends one request of each SDK to the address in argv[2], and prints the fields of its error as JSON.
import OpenAI from 'openai'
import Anthropic from '@anthropic-ai/sdk'

const [, , base, key] = process.argv
const messages = [{ role: 'user', content: 'hi' }]
const sdks = {
  openai: () => new OpenAI({ baseURL: `${base}/openai/v1`, apiKey: key })
    .chat.completions.create({ model: 'gpt-4o', max_tokens: 9, messages }),
  anthropic: () => new Anthropic({ baseURL: `${base}/anthropic`, apiKey: key })
    .messages.create({ model: 'claude', max_tokens: 9, messages }),
}
const ends = await Promise.all(Object.entries(sdks).map(([name, call]) => call().then(() => ({ name }), e => {
  const { type, code, message } = e.error?.error ?? e.error ?? {}
  return { name, status: e.status, type, code, message }
})))
console.log(JSON.stringify(ends))
