package usage

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/url"
	"regexp"
	"strings"
)

const (
	// pictureTokens is what Anthropic documents for the largest picture of the usual resolution.
	pictureTokens = 1600
	// soundBytes is the sound of a token: 16 kbit/s, the lowest usual rate, and 32 tokens a second of Gemini.
	soundBytes = 62
	// maxBlocks bounds the blocks that are read, because an empty one takes 500 bytes, and an interpreter
	// 0.2 ms. Media in others count as text.
	maxBlocks = 10000
)

// request has the places of a body where APIs take pictures, sound and documents. Some are arrays at one API,
// and one object or a text at another.
type request struct {
	Messages json.RawMessage `json:"messages"` // OpenAI, Anthropic, Bedrock, Mistral, Ollama
	Input    json.RawMessage `json:"input"`    // OpenAI Responses
	Inputs   json.RawMessage `json:"inputs"`   // Cohere and Voyage: embeddings
	Contents json.RawMessage `json:"contents"` // Gemini
	Content  json.RawMessage `json:"content"`  // Gemini: embeddings
	System   json.RawMessage `json:"systemInstruction"`
	Requests []struct {
		Content json.RawMessage `json:"content"`
	} `json:"requests"` // Gemini: several embeddings
	Images []string `json:"images"` // Ollama, Cohere
}

// block is a message, or a part of its content.
type block struct {
	Type    string          `json:"type"`
	Content json.RawMessage `json:"content"`
	Parts   json.RawMessage `json:"parts"`
	Output  json.RawMessage `json:"output"` // of a tool
	Images  []string        `json:"images"`

	// OpenAI, Mistral, Cohere, Voyage: URLs with data.
	ImageURL json.RawMessage `json:"image_url"`
	Image64  string          `json:"image_base64"`
	FileData string          `json:"file_data"`
	Result   string          `json:"result"`      // of image_generation_call
	Audio    json.RawMessage `json:"input_audio"` // an object with data, or at Mistral the data
	File     struct {
		Data string `json:"file_data"`
	} `json:"file"`

	// Anthropic.
	Source struct {
		Type    string          `json:"type"`
		Kind    string          `json:"media_type"`
		Data    string          `json:"data"`
		Content json.RawMessage `json:"content"`
	} `json:"source"`

	// Gemini.
	Inline  inline `json:"inlineData"`
	Inline2 inline `json:"inline_data"`

	// Bedrock. The content of a tool's result has the same parts.
	Image    bedrock `json:"image"`
	Document bedrock `json:"document"`
	Tool     struct {
		Content json.RawMessage `json:"content"`
	} `json:"toolResult"`
}

type inline struct {
	Kind  string `json:"mimeType"`
	Kind2 string `json:"mime_type"`
	Data  string `json:"data"`
}

type bedrock struct {
	Format string `json:"format"`
	Source struct {
		Bytes string `json:"bytes"`
	} `json:"source"`
}

// mediaKeywords are in each body that has media.
var mediaKeywords = wordsIn(`base64 "data" "bytes" "images" "image_generation_call" "input_audio"`)

// readMedia finds media at the places where APIs take them, and counts them in p.
func readMedia(p *Prompt, text []byte) {
	var r request
	_ = json.Unmarshal(text, &r) // a member of another type has no media
	places := []json.RawMessage{r.Messages, r.Input, r.Inputs, r.Contents, r.Content, r.System}
	for i := range r.Requests {
		places = append(places, r.Requests[i].Content)
	}
	for _, image := range r.Images {
		addURL(p, image, "image/")
	}
	const deepest = 6 // each level is decoded once more
	count := 0
	for depth := 0; depth < deepest; depth++ {
		var inner []json.RawMessage
		for _, place := range places {
			if len(place) == 0 || place[0] != '[' && place[0] != '{' {
				continue
			}
			decoder := json.NewDecoder(bytes.NewReader(place))
			if place[0] == '[' {
				_, _ = decoder.Token()
			}
			for ; count < maxBlocks && decoder.More(); count++ {
				b := &block{}
				_ = decoder.Decode(b) // an error means another type
				inner = append(inner, readBlock(p, b)...)
			}
		}
		places = inner
	}
}

// readBlock counts the media of a block, and returns the inner blocks.
func readBlock(p *Prompt, b *block) []json.RawMessage {
	for _, image := range b.Images {
		addURL(p, image, "image/")
	}
	for _, data := range []string{textIn(b.ImageURL), b.Image64, b.FileData, b.File.Data} {
		addURL(p, data, "")
	}
	if b.Type == "image_generation_call" {
		addMedia(p, "image/", b.Result, 0)
	}
	addMedia(p, "audio/", textIn(b.Audio), 0)
	if b.Source.Type == "base64" {
		addMedia(p, b.Source.Kind, b.Source.Data, 0)
	}
	for _, one := range []inline{b.Inline, b.Inline2} {
		kind := one.Kind + one.Kind2
		if one.Kind != "" && one.Kind2 != "" { // servers differ in which they read
			kind = ""
		}
		addMedia(p, kind, one.Data, 0)
	}
	addMedia(p, "image/"+b.Image.Format, b.Image.Source.Bytes, 0)
	addMedia(p, "application/"+b.Document.Format, b.Document.Source.Bytes, 0)
	return []json.RawMessage{b.Content, b.Parts, b.Output, b.Source.Content, b.Tool.Content}
}

// textIn returns a value that is a text, or the text in one that is an object.
func textIn(value json.RawMessage) string {
	var object struct {
		URL  string `json:"url"`
		Data string `json:"data"`
	}
	if len(value) > 0 && value[0] == '"' {
		_ = json.Unmarshal(value, &object.URL) // it is valid
	} else if len(value) > 0 {
		_ = json.Unmarshal(value, &object)
	}
	if object.URL == "" {
		return object.Data
	}
	return object.URL
}

// addURL counts a URL with data, or with kind also the data alone.
func addURL(p *Prompt, text, kind string) {
	rest := strings.TrimPrefix(text, "data:")
	comma := strings.IndexByte(rest, ',')
	if len(rest) < len(text) && comma >= 0 && strings.HasSuffix(rest[:comma], ";base64") {
		addMedia(p, rest[:comma], text, len(text)-len(rest)+comma)
	} else if kind != "" && len(rest) == len(text) {
		addMedia(p, kind, text, 0)
	}
}

// addMedia counts a text of the body, which after a number of bytes is data in base64 of a kind. What is no
// picture, sound or PDF counts as text does, by its decoded length.
func addMedia(p *Prompt, kind, text string, after int) {
	if len(text) == after {
		return
	}
	p.MediaLength += int64(len(text))
	p.MediaTokens += tokensOf(kind, int64(len(text)-after)*3/4)
}

// tokensOf returns what bytes of a kind may cost.
func tokensOf(kind string, length int64) int64 {
	kind = strings.ToLower(kind)
	text := length/4 + 1
	switch {
	case strings.HasPrefix(kind, "image/") && !strings.HasPrefix(kind, "image/svg"):
		return pictureTokens
	case strings.HasPrefix(kind, "audio/"):
		return length/soundBytes + 1
	case strings.HasPrefix(kind, "application/pdf") && text < pictureTokens:
		return pictureTokens
	}
	return text
}

// readForm reads the fields of a form, and counts its files. It reads one field of a name in any case.
func readForm(p *Prompt, contentTypes []string, body []byte) error {
	if len(contentTypes) == 0 {
		return nil
	}
	kind, parameters, err := mime.ParseMediaType(contentTypes[0])
	if !strings.Contains(strings.ToLower(strings.Join(contentTypes, " ")), "form") {
		return nil
	}
	if err != nil || len(contentTypes) > 1 {
		return ErrAmbiguous
	}
	model := ""
	models := 0
	if kind == "application/x-www-form-urlencoded" {
		values, err := url.ParseQuery(string(body))
		if err != nil {
			return ErrAmbiguous
		}
		for name, all := range values {
			if strings.EqualFold(name, "model") {
				models += len(all)
				model = all[0]
			}
		}
	} else {
		reader := multipart.NewReader(bytes.NewReader(body), parameters["boundary"])
		for {
			part, err := reader.NextRawPart()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil || part.Header.Get("Content-Transfer-Encoding") != "" {
				return ErrAmbiguous
			}
			text, err := io.ReadAll(part)
			if err != nil {
				return ErrAmbiguous
			}
			name := strings.ToLower(strings.TrimSpace(part.FormName()))
			if name == "" { // perhaps another server reads one
				return ErrAmbiguous
			}
			if name == "model" {
				models++
				model = string(text)
			} else if part.FileName() != "" {
				p.MediaLength += int64(len(text))
				p.MediaTokens += tokensOf(part.Header.Get("Content-Type"), int64(len(text)))
			}
		}
	}
	if models > 1 {
		return ErrAmbiguous
	}
	if p.Model == "" {
		p.Model = model
	}
	return nil
}

// unmeasured matches the paths of requests whose answers cannot be read: batches, as the first group, and
// binary event streams of AWS.
var unmeasured = regexp.MustCompile(`(?i)(/(?:batches|batch/jobs|batchpredictionjobs|` +
	`model-invocation-jobs?|` +
	`embed-jobs)|:(?:async)?batch(?:generatecontent|embedcontent))(?:[^/\w-][^/]*)?$|` +
	`/model/.+/(?:converse-stream|invoke-with-response-stream)$`)
