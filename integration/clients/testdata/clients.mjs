// Sends one request of each client and kind to the address in argv[2], and prints what the client reports.
import OpenAI from 'openai'
import Anthropic from '@anthropic-ai/sdk'
import { GoogleGenAI } from '@google/genai'
import { createAnthropic } from '@ai-sdk/anthropic'
import { createOpenAI } from '@ai-sdk/openai'
import { generateText } from 'ai'
import got from 'got'
import axios from 'axios'
import axiosRetry from 'axios-retry'

globalThis.AI_SDK_LOG_WARNINGS = false
const [, , base, kinds, seconds] = process.argv
const message = [{ role: 'user', content: 'hi' }]
const clients = {
  'openai-node': url => new OpenAI({ baseURL: url, apiKey: 'k' })
    .chat.completions.create({ model: 'gpt-4o', messages: message }),
  'anthropic-sdk': url => new Anthropic({ baseURL: url, apiKey: 'k' })
    .messages.create({ model: 'claude', max_tokens: 9, messages: message }),
  'ai-openai': url => generateText({ model: createOpenAI({ baseURL: url, apiKey: 'k' }).chat('gpt-4o'), prompt: 'hi' }),
  'ai-anthropic': url => generateText({ model: createAnthropic({ baseURL: url, apiKey: 'k' })('claude'), prompt: 'hi' }),
  'google-genai': url => new GoogleGenAI({ apiKey: 'k', httpOptions: { baseUrl: url } })
    .models.generateContent({ model: 'gemini-2.5-flash', contents: 'hi' }),
  got: url => got(url),
  'axios-retry': url => {
    const client = axios.create()
    axiosRetry(client)
    return client.get(url)
  },
  'node-fetch': async url => {
    const response = await fetch(url, { method: 'POST', body: '{}' })
    if (!response.ok) throw Object.assign(new Error(await response.text()), { status: response.status })
  },
}
const call = async (client, kind) => {
  const waiting = new Promise(resolve => setTimeout(resolve, seconds * 1000, 'waits'))
  const ended = clients[client](`${base}/${client}/${kind}`).then(() => 'passed', e =>
    ['refused', e.status ?? e.response?.status ?? e.response?.statusCode ?? (e.lastError ?? e).statusCode, e.code,
      e.type, e.message].join(' '))
  console.log(JSON.stringify({ client, kind, end: await Promise.race([ended, waiting]) }))
}
await Promise.all(Object.keys(clients).flatMap(c => kinds.split(',').map(k => call(c, k))))
process.exit()
