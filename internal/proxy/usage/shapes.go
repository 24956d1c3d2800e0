package usage

import "strings"

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

// shape says what stands at a path of an event. A number in a path is the index of an array.
type shape struct {
	path string
	is   int
}

// shapes lists where APIs report usage. If an event has several objects of counts, the first goes before the
// others, and these before single numbers: they only add what it lacks. A new place is a row here, and a new
// name of a number one in countNames. A row costs no interpreted calls.
var shapes = index([]shape{
	{"usage", counts},                              // OpenAI, Anthropic, Bedrock, Mistral, xAI and others
	{"response.usage", counts},                     // OpenAI Responses, in a stream
	{"message.usage", counts},                      // Anthropic, at the start of a stream
	{"usageMetadata", counts},                      // Gemini
	{"response.usageMetadata", counts},             // Gemini behind gateways
	{"interaction.usage", counts},                  // Gemini Interactions, in a stream
	{"x_groq.usage", counts},                       // Groq
	{"choices.0.usage", counts},                    // Kimi
	{"delta.usage", counts},                        // Cohere, in a stream
	{"meta", counts},                               // Cohere: embeddings, rerank
	{"usage_info", counts},                         // Mistral: OCR
	{"response.meta", counts},                      // Cohere, version 1, in a stream
	{"result.usage", counts},                       // Cloudflare
	{"data.usage", counts},                         // OpenAI Assistants
	{"metadata.usage", counts},                     // Bedrock Converse, in a stream
	{"amazon-bedrock-invocationMetrics", counts},   // Bedrock
	{"tool_usage.image_gen", added},                // OpenAI Responses
	{"response.tool_usage.image_gen", added},       // the same, in a stream
	{"usage.iterations", entries},                  // Anthropic: compaction, fallbacks, advisors
	{"message.usage.iterations", entries},          // the same, in a stream
	{"usage_breakdown.models", entries},            // Groq Compound
	{"x_groq.usage_breakdown.models", entries},     // the same, in a stream
	{"predictions", entries},                       // Vertex: embeddings
	{"prompt_eval_count", promptTotal},             // Ollama
	{"eval_count", answer},                         // Ollama
	{"tokens_evaluated", promptTotal},              // llama.cpp
	{"tokens_predicted", answer},                   // llama.cpp
	{"timings.cache_n", cacheReadBeside},           // llama.cpp
	{"timings.prompt_n", promptWithout},            // llama.cpp, in a stream
	{"timings.predicted_n", answer},                // llama.cpp, in a stream
	{"inputTextTokenCount", promptTotal},           // Titan on Bedrock
	{"results.0.tokenCount", answer},               // Titan on Bedrock
	{"prompt_token_count", promptTotal},            // Llama on Bedrock
	{"generation_token_count", answer},             // Llama on Bedrock
	{"details.generated_tokens", answer},           // Text Generation Inference
	{"details.input_length", promptTotal},          // the same, in a stream
	{"tool_usage.web_search.num_requests", search}, // OpenAI Responses
	{"response.tool_usage.web_search.num_requests", search},
	{"model", model}, {"message.model", model}, {"response.model", model}, {"modelVersion", model},
	{"response.modelVersion", model}, {"interaction.model", model},
	{"service_tier", tier}, {"usage.service_tier", tier}, {"message.usage.service_tier", tier},
	{"response.service_tier", tier}, {"x_groq.service_tier", tier}, {"serviceTier.type", tier},
	{"metadata.serviceTier.type", tier},
	{"usageMetadata.trafficType", tier}, {"usageMetadata.serviceTier", tier},
	{"response.usageMetadata.trafficType", tier}, {"interaction.service_tier", tier},
	{"usage.speed", speed}, {"message.usage.speed", speed},
	{"error", failed}, {"response.error", failed}, {"interaction.error", failed}, {"choices.0.error", failed},
	{"errors", failed}, {"delta.error", failed}, {"base_resp.status_code", failed},
	{"results.0.flagged", free}, {"results.0.categories", free}, // moderations
})

// countNames has the names of numbers in objects of counts. A name in an inner object follows a period. An
// element of an array has the name of its modality, time or type, in capitals.
var countNames = withDetails(map[string]int{
	// OpenAI, Anthropic, Bedrock, Gemini, Gemini Interactions.
	"prompt_tokens": promptTotal, "promptTokenCount": promptTotal, "total_input_tokens": promptTotal,
	"input_tokens": promptWithout, "inputTokens": promptWithout, "inputTokenCount": promptWithout,
	"completion_tokens": answer, "output_tokens": answer, "outputTokens": answer, "outputTokenCount": answer,
	"candidatesTokenCount": answer, "responseTokenCount": answer, "total_output_tokens": answer,
	"total_tokens": total, "totalTokens": total, "totalTokenCount": total,
	"thoughtsTokenCount": thoughts, "total_thought_tokens": thoughts, "reasoning_tokens": reasoning,
	"toolUsePromptTokenCount": toolPrompt, "total_tool_use_tokens": toolPrompt,
	"connector_tokens": connector, "citation_tokens": connector,
	"cached_tokens": cacheRead, "prompt_cache_hit_tokens": cacheRead, "cachedContentTokenCount": cacheRead,
	"total_cached_tokens": cacheRead, "num_cached_tokens": cacheRead,
	"cache_read_input_tokens": cacheReadBeside, "cacheReadInputTokens": cacheReadBeside,
	"cacheReadInputTokenCount": cacheReadBeside, "cacheReadInputTokensCount": cacheReadBeside,
	"cache_creation_input_tokens": cacheWriteBeside, "cacheWriteInputTokens": cacheWriteBeside,
	"cacheWriteInputTokenCount": cacheWriteBeside, "cacheWriteInputTokensCount": cacheWriteBeside,
	"cache_creation.ephemeral_5m_input_tokens": cacheWrite5m, "cacheDetails.5M": cacheWrite5m,
	"cache_creation.ephemeral_1h_input_tokens": cacheWrite1h, "cacheDetails.1H": cacheWrite1h,
	"promptTokensDetails.AUDIO": audioIn, "promptTokenDetails.AUDIO": audioIn,
	"input_tokens_by_modality.AUDIO": audioIn, "audio_tokens": audioIn,
	"promptTokensDetails.IMAGE": imageIn, "promptTokenDetails.IMAGE": imageIn,
	"input_tokens_by_modality.IMAGE": imageIn, "image_tokens": imageIn,
	"toolUsePromptTokensDetails.AUDIO": audioInTool, "tool_use_tokens_by_modality.AUDIO": audioInTool,
	"toolUsePromptTokensDetails.IMAGE": imageInTool, "tool_use_tokens_by_modality.IMAGE": imageInTool,
	"cacheTokensDetails.AUDIO": audioCached, "cached_tokens_by_modality.AUDIO": audioCached,
	"cacheTokensDetails.IMAGE": imageCached, "cached_tokens_by_modality.IMAGE": imageCached,
	"candidatesTokensDetails.AUDIO": audioOut, "responseTokensDetails.AUDIO": audioOut,
	"output_tokens_by_modality.AUDIO": audioOut,
	"candidatesTokensDetails.IMAGE":   imageOut, "responseTokensDetails.IMAGE": imageOut,
	"output_tokens_by_modality.IMAGE": imageOut,
	// Cohere.
	"billed_units.input_tokens": promptTotal, "billed_units.output_tokens": answer,
	"billed_units.search_units": search, "billed_units.image_tokens": imageInBeside,
	// Anthropic, OpenRouter; Perplexity; xAI; Mistral; Gemini Interactions.
	"server_tool_use.web_search_requests": search, "num_search_queries": search, "num_sources_used": search,
	"server_side_tool_usage_details.web_search_calls": search, "connectors.web_search": search,
	"server_side_tool_usage_details.x_search_calls": searchBeside,
	"connectors.web_search_premium":                 searchBeside,
	"grounding_tool_count.GOOGLE_SEARCH":            search,
	"embeddings.statistics.token_count":             promptTotal,
	// Transcriptions; Mistral's OCR.
	"seconds": duration, "duration": duration, "pages_processed": duration,
})

// withDetails adds the numbers in the objects of details that OpenAI and others have, by several names.
func withDetails(all map[string]int) map[string]int {
	for _, object := range []string{"prompt_tokens_details.", "prompt_token_details.",
		"input_tokens_details.", "input_token_details."} {
		all[object+"cached_tokens"] = cacheRead
		all[object+"cache_write_tokens"] = cacheWrite
		all[object+"cache_creation_tokens"] = cacheWrite
		all[object+"cache_creation_input_tokens"] = cacheWrite
		for _, inner := range []string{"cache_creation.", "cache_creation_token_details."} { // LiteLLM
			all[object+inner+"ephemeral_5m_input_tokens"] = cacheWrite5m
			all[object+inner+"ephemeral_1h_input_tokens"] = cacheWrite1h
		}
		all[object+"audio_tokens"] = audioIn
		all[object+"image_tokens"] = imageIn
		all[object+"web_search_requests"] = search // LiteLLM
		all[object+"cached_tokens_details.audio_tokens"] = audioCached
		all[object+"cached_tokens_details.image_tokens"] = imageCached
	}
	for _, object := range []string{"completion_tokens_details.", "completion_token_details.",
		"output_tokens_details.", "output_token_details."} {
		all[object+"reasoning_tokens"] = reasoning
		all[object+"audio_tokens"] = audioOut
		all[object+"image_tokens"] = imageOut
		all[object+"text_tokens"] = textOut
	}
	return all
}

// member has the shapes below a member of an event, with the rest of their paths.
type member struct {
	name  string
	paths [][]string
	are   []int
}

// index returns shapes by the first names of their paths.
func index(all []shape) []member {
	var members []member
	at := map[string]int{}
	for _, s := range all {
		path := strings.Split(s.path, ".")
		if at[path[0]] == 0 {
			members = append(members, member{name: path[0]})
			at[path[0]] = len(members)
		}
		m := &members[at[path[0]]-1]
		m.paths = append(m.paths, path[1:])
		m.are = append(m.are, s.is)
	}
	return members
}

// keywords are in the text of all events of a stream that report something, except a tier and a model, which
// streamed has. An event without any of them is not read.
var keywords = [][]byte{[]byte("oken"), []byte("eval_count"), []byte("rafficType"), []byte("earch"),
	[]byte("rror"), []byte(`seconds"`)}
