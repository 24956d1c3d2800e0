package usage

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// Prompt holds what a request asks of a language model.
type Prompt struct {
	Model      string // as the path names it, or else the body; "" without one, or if it is too long
	Named      string // the beginning of that name
	Tier       string // the tier of service that the body asks for, as answers name it, or ""
	Output     int64  // the most tokens of output that the body permits; 0 if it names no maximum
	Answers    int64  // the answers that the body asks for, which share Output; 0 if it names no number
	Background bool   // the client will poll for the answer
	Batch      bool   // the path takes a batch, whose answers come later
	Binary     bool   // the path answers with a binary event stream of AWS

	MediaLength int64 // how much of the body is pictures, sound and other data that is no text
	MediaTokens int64 // what they may cost
}

// ErrAmbiguous is the error of an object in which a name stands twice, or that is not JSON. Servers differ in
// what they read there.
var ErrAmbiguous = errors.New("ambiguous body")

// members has the members of an object that are read, in the order of names. Decoding finds names in any
// case, and with escapes, and keeps the last member of each.
type members struct {
	Model               json.RawMessage `json:"model"`
	Background          json.RawMessage `json:"background"`
	N                   json.RawMessage `json:"n"`
	MaxTokens           json.RawMessage `json:"max_tokens"`
	MaxCompletionTokens json.RawMessage `json:"max_completion_tokens"`
	MaxOutputTokens     json.RawMessage `json:"max_output_tokens"`
	Options             json.RawMessage `json:"options"`
	GenerationConfig    json.RawMessage `json:"generationConfig"`
	NumPredict          json.RawMessage `json:"num_predict"`
	GeminiOutput        json.RawMessage `json:"maxOutputTokens"`
	ServiceTier         json.RawMessage `json:"service_tier"`
	BedrockTier         json.RawMessage `json:"serviceTier"`
	Speed               json.RawMessage `json:"speed"`
}

// innerName is the index in names of the first member that is in an inner object: num_predict in options, and
// maxOutputTokens in generationConfig.
const innerName = 11

// names has the names of members in lower case.
var names = wordsIn(`"model" "background" "n" "max_tokens" "max_completion_tokens" "max_output_tokens" ` +
	`"options" "generationconfig" "service_tier" "servicetier" "speed" "num_predict" "maxoutputtokens"`)

// spellings has, in lower case, what may stand in a text for a letter or an underscore of a name.
var spellings = wordsIn(`\u004 \u005 \u006 \u007 \u017f \u212a ſ`)

// modelInPath matches a path of Gemini, Azure or Bedrock with the name of a model, in which a slash may
// stand.
var modelInPath = regexp.MustCompile("(?is)/(?:tuned)?models/(.+):[a-z]+$|/openai/deployments/([^/]+)/|" +
	"/model/(.+)/(?:invoke|converse)")

const (
	maxModel = 256  // the longest name of a model, in bytes
	maxNames = 1000 // the most members of an object that walk reads
)

// ReadPrompt reads a request with a path, in which escapes are decoded, the values of its Content-Type, and a
// body, which is JSON if it begins as an object, or may be a form. Any other body asks for nothing.
func ReadPrompt(decoded string, contentTypes []string, body []byte) (Prompt, error) {
	var p Prompt
	plain := path.Clean(strings.Replace(decoded, "\\", "/", -1))
	if found := modelInPath.FindStringSubmatch(plain); found != nil {
		p.Model = found[1] + found[2] + found[3]
	}
	if found := unmeasured.FindStringSubmatch(plain); found != nil {
		p.Batch = found[1] != ""
		p.Binary = !p.Batch
	}
	const space = " \t\r\n"
	text := bytes.TrimLeft(bytes.TrimPrefix(body, []byte("\ufeff")), space)
	// Some servers read UTF-16, too. U+FFFD stands for each byte that is not UTF-8.
	start := bytes.TrimLeft(body, space+"\x00\ufeff\ufffd")
	if len(start) == 0 || start[0] != '{' {
		err := readForm(&p, contentTypes, body)
		bound(&p)
		return p, err
	}
	if len(start) != len(text) {
		return p, ErrAmbiguous
	}
	top, err := readObject(text, 0, innerName)
	if err != nil {
		return p, err
	}
	maxima := [][]byte{top.MaxTokens, top.MaxCompletionTokens, top.MaxOutputTokens}
	for i, object := range []json.RawMessage{top.Options, top.GenerationConfig} {
		if object == nil {
			continue
		}
		first := innerName + i
		inner, err := readObject(object, first, first+1)
		if err != nil {
			return p, err
		}
		maxima = append(maxima, inner.list()[first])
	}
	if p.Model == "" {
		_ = json.Unmarshal(top.Model, &p.Model) // a model that is no text stays ""
	}
	bound(&p)
	hasMedia := false
	for _, keyword := range mediaKeywords {
		hasMedia = hasMedia || bytes.Contains(text, keyword)
	}
	if hasMedia {
		readMedia(&p, text)
	}
	p.Tier = tierIn(top.ServiceTier, top.BedrockTier, top.Speed)
	p.Background = string(top.Background) == "true"
	for _, number := range maxima {
		if number == nil {
			continue
		}
		if n := whole(number); n > p.Output {
			p.Output = n
		}
	}
	if top.N != nil {
		p.Answers = whole(top.N)
	}
	if n := p.Answers; n > 0 && p.Output > most/n {
		p.Output = most
	} else if n > 0 {
		p.Output *= n
	}
	return p, nil
}

// tierIn returns the last tier in JSON texts other than the standard one, or "". A nil text has none.
func tierIn(texts ...[]byte) string {
	tier := ""
	for _, text := range texts {
		if text == nil {
			continue
		}
		var value interface{}
		_ = json.Unmarshal(text, &value) // text is valid
		if t := textOf(objectOf(value)["type"]); t != "" {
			value = t
		}
		if t := tierOf(textOf(value)); t != "" && t != "standard" {
			tier = t
		}
	}
	return tier
}

// bound bounds the length of the name of a model.
func bound(p *Prompt) {
	p.Named = p.Model
	if len(p.Model) > maxModel {
		p.Named = strings.Clone(p.Model[:maxModel])
		p.Model = ""
	}
}

// whole returns the number in a JSON text, or most if it is larger, or 0 if it is no whole number of 1 or
// more.
func whole(text []byte) int64 {
	n, err := strconv.ParseFloat(string(text), 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) || n < 1 || n != math.Trunc(n) {
		return 0
	}
	if n > most {
		return most
	}
	return int64(n)
}

// readObject returns the members of a JSON object. Those with indexes in names from first to last-1 must not
// stand twice. Any other JSON has no members.
func readObject(text []byte, first, last int) (*members, error) {
	m := &members{}
	if len(text) == 0 || text[0] != '{' {
		return m, nil
	}
	if json.Unmarshal(text, m) != nil {
		return nil, ErrAmbiguous
	}
	lower := bytes.ToLower(text)
	for _, spelling := range spellings {
		if bytes.Contains(lower, spelling) {
			return m, walk(text, first, last)
		}
	}
	found := m.list()
	for i := first; i < last; i++ {
		if found[i] != nil && bytes.Count(lower, names[i]) != 1 {
			return m, walk(text, first, last)
		}
	}
	return m, nil
}

// list returns the members by their indexes in names.
func (m *members) list() []json.RawMessage {
	return []json.RawMessage{m.Model, m.Background, m.N, m.MaxTokens, m.MaxCompletionTokens,
		m.MaxOutputTokens, m.Options, m.GenerationConfig, m.ServiceTier, m.BedrockTier, m.Speed, m.NumPredict,
		m.GeminiOutput}
}

// walk returns ErrAmbiguous if one of the names from first to last-1 stands twice in a JSON object. It walks
// through the members, and compiled code skips their values.
func walk(text []byte, first, last int) error {
	seen := make([]bool, len(names))
	decoder := json.NewDecoder(bytes.NewReader(text))
	_, _ = decoder.Token() // the brace
	for n := 0; decoder.More(); n++ {
		token, _ := decoder.Token()
		name := `"` + fmt.Sprint(token) + `"`
		for i := first; i < last; i++ {
			if !strings.EqualFold(name, string(names[i])) {
				continue
			}
			if seen[i] {
				return ErrAmbiguous
			}
			seen[i] = true
		}
		_ = decoder.Decode(&struct{}{}) // an error means another type
		if n == maxNames {
			return ErrAmbiguous
		}
	}
	return nil
}
