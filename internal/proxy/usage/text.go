package usage

import (
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// streamed has the fields of an event that may be new text, and its tier and its model. Some are text at one
// API, and an object or an array at another.
type streamed struct {
	Model string `json:"model"`
	Tier  string `json:"service_tier"`

	// Members of an error without a name.
	Code      json.RawMessage `json:"code"`
	ErrorCode json.RawMessage `json:"error_code"`
	Detail    json.RawMessage `json:"detail"`

	// OpenAI: chat and completions. Other servers name the reasoning in two ways, or in both.
	Choices []struct {
		Text  string `json:"text"`
		Delta struct {
			Content          json.RawMessage `json:"content"`
			Refusal          string          `json:"refusal"`
			Reasoning        string          `json:"reasoning"`
			ReasoningContent string          `json:"reasoning_content"`
			Function         struct {
				Arguments string `json:"arguments"`
			} `json:"function_call"`
			Tools []tool `json:"tool_calls"`
			Audio struct {
				Transcript string `json:"transcript"`
			} `json:"audio"`
		} `json:"delta"`
	} `json:"choices"`

	// OpenAI: Responses. Anthropic. Cohere.
	Type  string          `json:"type"`
	Delta json.RawMessage `json:"delta"`
	Block struct {
		Text string `json:"text"`
	} `json:"content_block"`

	// Mistral: conversations, transcriptions. Cohere, version 1. llama.cpp. Other events repeat their text.
	Event     string          `json:"event_type"`
	Text      string          `json:"text"`
	Arguments string          `json:"arguments"`
	Content   json.RawMessage `json:"content"`

	// Gemini.
	Candidates []struct {
		Content struct {
			Parts []struct {
				Text     string `json:"text"`
				Function struct {
					Args json.RawMessage `json:"args"`
				} `json:"functionCall"`
				Code struct {
					Code string `json:"code"`
				} `json:"executableCode"`
			} `json:"parts"`
		} `json:"content"`
	} `json:"candidates"`

	// Ollama: chat and generate.
	Message struct {
		Content  string `json:"content"`
		Thinking string `json:"thinking"`
		Tools    []tool `json:"tool_calls"`
	} `json:"message"`
	Response json.RawMessage `json:"response"`
	Thinking string          `json:"thinking"`

	// Bedrock: Converse, Titan, Llama, Mistral. Anthropic: completions. Text Generation Inference.
	Converse struct {
		Delta struct {
			Text      string `json:"text"`
			Reasoning struct {
				Text string `json:"text"`
			} `json:"reasoningContent"`
			Tool struct {
				Input string `json:"input"`
			} `json:"toolUse"`
		} `json:"delta"`
	} `json:"contentBlockDelta"`
	OutputText string `json:"outputText"`
	Generation string `json:"generation"`
	Outputs    []struct {
		Text string `json:"text"`
	} `json:"outputs"`
	Completion string `json:"completion"`
	Token      struct {
		Text string `json:"text"`
	} `json:"token"`
}

// tool is a call of a tool. OpenAI has the arguments as a text, Ollama as an object.
type tool struct {
	Function struct {
		Arguments json.RawMessage `json:"arguments"`
	} `json:"function"`
}

// part is the delta of Anthropic or Cohere, or an element of a content at Mistral.
type part struct {
	Text     string          `json:"text"`
	Thinking json.RawMessage `json:"thinking"`
	Partial  string          `json:"partial_json"`
	Content  json.RawMessage `json:"content"` // a summary
	Message  struct {
		Content json.RawMessage `json:"content"`
		Plan    string          `json:"tool_plan"`
		Tool    struct {
			Function struct {
				Arguments string `json:"arguments"`
			} `json:"function"`
		} `json:"tool_calls"`
	} `json:"message"`
}

// newText returns the number of characters of new text in an event of a stream, and reads its tier and its
// model. It calls no function for a field that is empty, because an interpreted call takes long.
func newText(r *Reader, event []byte) int {
	var e streamed
	err := json.Unmarshal(event, &e) // a field of another type has no text
	if e.Model != "" {
		r.model = e.Model
	}
	if e.Tier != "" && e.Tier != "auto" {
		r.tier = e.Tier
	}
	converse := &e.Converse.Delta
	n := utf8.RuneCountInString(e.Block.Text + e.Message.Content + e.Message.Thinking + e.Thinking +
		converse.Text + converse.Reasoning.Text + converse.Tool.Input + e.OutputText + e.Generation +
		e.Completion + e.Token.Text)
	for i := range e.Outputs {
		n += utf8.RuneCountInString(e.Outputs[i].Text)
	}
	for i := range e.Choices {
		delta := &e.Choices[i].Delta
		if delta.ReasoningContent == "" {
			delta.ReasoningContent = delta.Reasoning
		}
		n += utf8.RuneCountInString(e.Choices[i].Text + delta.Refusal + delta.ReasoningContent +
			delta.Audio.Transcript)
		if len(delta.Content) > 0 {
			n += length(delta.Content)
		}
		for j := range delta.Tools {
			n += length(delta.Tools[j].Function.Arguments)
		}
		n += utf8.RuneCountInString(delta.Function.Arguments)
	}
	for i := range e.Candidates {
		for _, p := range e.Candidates[i].Content.Parts {
			n += utf8.RuneCountInString(p.Text+p.Code.Code) + utf8.RuneCount(p.Function.Args)
		}
	}
	for i := range e.Message.Tools {
		n += utf8.RuneCount(e.Message.Tools[i].Function.Arguments)
	}
	if len(e.Delta) > 0 && !strings.HasSuffix(e.Type, "audio.delta") { // sound at Responses
		n += length(e.Delta)
	}
	if len(e.Content) > 0 && e.Type == "" {
		n += length(e.Content)
	} else if (e.Text != "" || e.Arguments != "" || len(e.Content) > 0) &&
		(strings.HasSuffix(e.Type, "delta") || e.Event == "text-generation") {
		n += utf8.RuneCountInString(e.Text+e.Arguments) + length(e.Content)
	}
	if len(e.Response) > 0 && e.Response[0] == '"' {
		n += length(e.Response)
	}
	if n == 0 && (err != nil || len(e.Code)+len(e.ErrorCode)+len(e.Detail) > 0) { // or a message is a text
		var fields map[string]json.RawMessage
		_ = json.Unmarshal(event, &fields) // what is no JSON describes no error
		r.failed = r.failed || isProblem(fields)
	}
	return n
}

// length returns the number of characters of a text, or of the texts of a part or of an array of parts.
func length(text json.RawMessage) int {
	if len(text) == 0 {
		return 0
	}
	var all []part
	switch text[0] {
	case '"':
		s := ""
		_ = json.Unmarshal(text, &s) // text is valid
		return utf8.RuneCountInString(s)
	case '{':
		all = make([]part, 1)
		_ = json.Unmarshal(text, &all[0])
	case '[':
		_ = json.Unmarshal(text, &all)
	}
	n := 0
	for i := range all {
		inner := &all[i].Message
		n += utf8.RuneCountInString(all[i].Text + all[i].Partial + inner.Plan + inner.Tool.Function.Arguments)
		for _, text := range []json.RawMessage{all[i].Thinking, all[i].Content, inner.Content} {
			if len(text) > 0 {
				n += length(text)
			}
		}
	}
	return n
}
