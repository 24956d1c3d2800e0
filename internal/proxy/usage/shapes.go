package usage

import (
	"bytes"
	"strings"
)

// The numbers that responses report. A number is a total, or a detail of one.
const (
	noNumber      = iota
	promptTotal   // the prompt, with what caches had or got
	promptWithout // the prompt; cacheReadBeside and cacheWriteBeside stand beside it
	toolPrompt    // what tools have added to the prompt
	connector     // the same, if only so the total is right
	cacheRead     // details of the prompt
	cacheReadBeside
	cacheWrite
	cacheWriteBeside
	cacheWrite5m
	cacheWrite1h
	audioIn
	audioInTool
	audioCached
	imageIn
	imageInTool
	imageInBeside
	imageCached
	answer   // the answer
	thoughts // reasoning beside the answer
	// details of the answer
	reasoning // beside it, if only so the total is right
	audioOut
	imageOut
	textOut
	total // prompt and answer
	search
	searchBeside
	duration // a report that has no tokens, but seconds or pages
	numbers
)

// What else a row of shapes is.
const (
	counts  = -1 - iota // an object of counts
	added               // an object of counts that are added
	entries             // an array of counts, each with its model, in place of the total
	model               // the model that answers
	tier
	speed
	failed // an error
	free   // nothing was generated
)

// shape says what stands at a path of an event, and at the same path below each of the members that follow in
// the text. A number in a path is the index of an array.
type shape struct {
	path   string
	number int // the index of a number, or one of counts to free
}

// shapes lists where APIs report usage. If an event has several objects of counts, the first goes before the
// others, and these before single numbers: they only add what it lacks. A new place is a row or a word here,
// and a new name of a number one in countNames. A row costs no interpreted calls.
var shapes = index([]shape{
	// OpenAI, Anthropic, Bedrock, Mistral, xAI and others. In a stream: OpenAI Responses, Anthropic, Gemini
	// Interactions, Groq, Kimi, Cohere. Cloudflare. OpenAI Assistants. Bedrock
	// Converse.
	{"usage response message interaction x_groq choices.0 delta result data metadata", counts},
	{"usageMetadata response", counts},                      // Gemini, and behind gateways
	{"meta response", counts},                               // Cohere: embeddings, rerank, version 1
	{"usage_info", counts},                                  // Mistral: OCR
	{"amazon-bedrock-invocationMetrics", counts},            // Bedrock
	{"tool_usage.image_gen response", added},                // OpenAI Responses
	{"usage.iterations message", entries},                   // Anthropic: compaction, fallbacks, advisors
	{"usage_breakdown.models x_groq", entries},              // Groq Compound
	{"predictions", entries},                                // Vertex: embeddings
	{"prompt_eval_count", promptTotal},                      // Ollama
	{"eval_count", answer},                                  // Ollama
	{"tokens_evaluated", promptTotal},                       // llama.cpp
	{"tokens_predicted", answer},                            // llama.cpp
	{"timings.cache_n", cacheReadBeside},                    // llama.cpp
	{"timings.prompt_n", promptWithout},                     // llama.cpp, in a stream
	{"timings.predicted_n", answer},                         // llama.cpp, in a stream
	{"inputTextTokenCount", promptTotal},                    // Titan on Bedrock
	{"results.0.tokenCount", answer},                        // Titan on Bedrock
	{"prompt_token_count", promptTotal},                     // Llama on Bedrock
	{"generation_token_count", answer},                      // Llama on Bedrock
	{"details.generated_tokens", answer},                    // Text Generation Inference
	{"details.input_length", promptTotal},                   // the same, in a stream
	{"tool_usage.web_search.num_requests response", search}, // OpenAI Responses
	{"model message response interaction", model}, {"modelVersion response", model},
	{"service_tier usage message.usage response x_groq interaction", tier},
	{"serviceTier.type metadata", tier},
	{"usageMetadata.trafficType response", tier}, {"usageMetadata.serviceTier", tier},
	{"usage.speed message", speed},
	{"error response interaction choices.0 delta", failed}, {"errors", failed},
	{"base_resp.status_code", failed},
	{"results.0.flagged", free}, {"results.0.categories", free}, // moderations
})

// countNames has the names of numbers in objects of counts. A name in an inner object follows a period. An
// element of an array has the name of its modality, time or type, in capitals.
var countNames = byName(map[int]string{
	promptTotal: "prompt_tokens promptTokenCount total_input_tokens billed_units.input_tokens " +
		"embeddings.statistics.token_count",
	promptWithout: "input_tokens inputTokens inputTokenCount",
	answer: "completion_tokens output_tokens outputTokens outputTokenCount candidatesTokenCount " +
		"responseTokenCount total_output_tokens billed_units.output_tokens",
	total:      "total_tokens totalTokens totalTokenCount",
	thoughts:   "thoughtsTokenCount total_thought_tokens",
	reasoning:  "reasoning_tokens answer:reasoning_tokens",
	toolPrompt: "toolUsePromptTokenCount total_tool_use_tokens",
	connector:  "connector_tokens citation_tokens",
	cacheRead: "cached_tokens prompt_cache_hit_tokens cachedContentTokenCount total_cached_tokens " +
		"num_cached_tokens prompt:cached_tokens",
	cacheReadBeside: "cache_read_input_tokens cacheReadInputTokens cacheReadInputTokenCount " +
		"cacheReadInputTokensCount",
	cacheWrite: "prompt:cache_write_tokens prompt:cache_creation_tokens prompt:cache_creation_input_tokens",
	cacheWriteBeside: "cache_creation_input_tokens cacheWriteInputTokens cacheWriteInputTokenCount " +
		"cacheWriteInputTokensCount",
	cacheWrite5m: "cache_creation.ephemeral_5m_input_tokens cacheDetails.5M " +
		"prompt:cache_creation.ephemeral_5m_input_tokens " +
		"prompt:cache_creation_token_details.ephemeral_5m_input_tokens", // LiteLLM
	cacheWrite1h: "cache_creation.ephemeral_1h_input_tokens cacheDetails.1H " +
		"prompt:cache_creation.ephemeral_1h_input_tokens " +
		"prompt:cache_creation_token_details.ephemeral_1h_input_tokens",
	audioIn: "promptTokensDetails.AUDIO promptTokenDetails.AUDIO input_tokens_by_modality.AUDIO " +
		"audio_tokens prompt:audio_tokens",
	imageIn: "promptTokensDetails.IMAGE promptTokenDetails.IMAGE input_tokens_by_modality.IMAGE " +
		"image_tokens prompt:image_tokens",
	imageInBeside: "billed_units.image_tokens",
	audioInTool:   "toolUsePromptTokensDetails.AUDIO tool_use_tokens_by_modality.AUDIO",
	imageInTool:   "toolUsePromptTokensDetails.IMAGE tool_use_tokens_by_modality.IMAGE",
	audioCached: "cacheTokensDetails.AUDIO cached_tokens_by_modality.AUDIO " +
		"prompt:cached_tokens_details.audio_tokens",
	imageCached: "cacheTokensDetails.IMAGE cached_tokens_by_modality.IMAGE " +
		"prompt:cached_tokens_details.image_tokens",
	audioOut: "candidatesTokensDetails.AUDIO responseTokensDetails.AUDIO output_tokens_by_modality.AUDIO " +
		"answer:audio_tokens",
	imageOut: "candidatesTokensDetails.IMAGE responseTokensDetails.IMAGE output_tokens_by_modality.IMAGE " +
		"answer:image_tokens",
	textOut: "answer:text_tokens",
	search: "billed_units.search_units server_tool_use.web_search_requests num_search_queries " +
		"num_sources_used server_side_tool_usage_details.web_search_calls connectors.web_search " +
		"grounding_tool_count.GOOGLE_SEARCH prompt:web_search_requests",
	searchBeside: "server_side_tool_usage_details.x_search_calls connectors.web_search_premium",
	duration:     "seconds duration pages_processed", // transcriptions; Mistral's OCR
})

// byName returns numbers by their names, which stand in a text. OpenAI and others have objects of details,
// here prompt: and answer:, by several names.
func byName(names map[int]string) map[string]int {
	details := map[string][]string{
		"prompt": {"prompt_tokens_details.", "prompt_token_details.", "input_tokens_details.",
			"input_token_details."},
		"answer": {"completion_tokens_details.", "completion_token_details.", "output_tokens_details.",
			"output_token_details."},
	}
	all := map[string]int{}
	for is, text := range names {
		for _, name := range strings.Fields(text) {
			kind, inner, isDetail := strings.Cut(name, ":")
			if !isDetail {
				all[name] = is
			}
			for _, object := range details[kind] {
				all[object+inner] = is
			}
		}
	}
	return all
}

// member has the shapes below a member of an event, with the rest of their paths.
type member struct {
	name    string
	paths   [][]string
	numbers []int // shape.number of each of paths
}

// index returns shapes by the first names of their paths.
func index(all []shape) []member {
	var members []member
	at := map[string]int{}
	for _, s := range all {
		words := strings.Fields(s.path)
		for i, whole := range words {
			if i > 0 {
				whole += "." + words[0]
			}
			path := strings.Split(whole, ".")
			if at[path[0]] == 0 {
				members = append(members, member{name: path[0]})
				at[path[0]] = len(members)
			}
			m := &members[at[path[0]]-1]
			m.paths = append(m.paths, path[1:])
			m.numbers = append(m.numbers, s.number)
		}
	}
	return members
}

// keywords are in the text of all events of a stream that report something, except a tier and a model, which
// streamed has. An event without any of them is not read.
var keywords = wordsIn(`oken eval_count rafficType earch rror seconds"`)

// wordsIn returns the words of a text.
func wordsIn(text string) [][]byte { return bytes.Fields([]byte(text)) }
