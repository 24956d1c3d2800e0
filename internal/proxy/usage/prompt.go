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
	Model       string // as the path names it, or else the body; "" without one, or if it is too long
	Named       string // the beginning of that name
	ServiceTier string // the tier of service that the body asks for, as answers name it, or ""
	Output      int64  // the most tokens of output that the body permits; 0 if it names no maximum
	Answers     int64  // the answers that the body asks for, which share Output; 0 if it names no number
	Background  bool   // the client will poll for the answer
	BatchAPI    bool   // the path takes a batch, whose answers come later
	Binary      bool   // the path answers with a binary event stream of AWS

	MediaLength int64 // how much of the body is pictures, sound and other data that is no text
	MediaTokens int64 // what they may cost
}

// ErrAmbiguous is the error of an object in which a name stands twice, or that is not JSON. Servers differ in
// what they read there.
var ErrAmbiguous = errors.New("ambiguous body")

// members has the members of an object that are read. Decoding finds names in any case, and with escapes, and
// keeps the last member of each.
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

// Request is a request to a language model.
type Request struct {
	Path         string   // with its escapes decoded
	ContentTypes []string // the values of this header
	Body         []byte   // JSON if it begins as an object, or may be a form; any other asks for nothing

	// Set by ReadPrompts.
	Prompt Prompt
	Err    error
}

// ReadPrompts reads requests. It and its steps are loops, because an interpreter would take long for calls.
func ReadPrompts(all []*Request) {
	var objects []*Request
	var texts [][]byte
	for _, a := range all {
		p := &a.Prompt
		plain := path.Clean(strings.Replace(a.Path, "\\", "/", -1))
		if found := modelInPath.FindStringSubmatch(plain); found != nil {
			p.Model = found[1] + found[2] + found[3]
		}
		if found := unmeasured.FindStringSubmatch(plain); found != nil {
			p.BatchAPI = found[1] != ""
			p.Binary = !p.BatchAPI
		}
		const space = " \t\r\n"
		text := bytes.TrimLeft(bytes.TrimPrefix(a.Body, []byte("\ufeff")), space)
		// Some servers read UTF-16, too. U+FFFD stands for each byte that is not UTF-8.
		start := bytes.TrimLeft(a.Body, space+"\x00\ufeff\ufffd")
		switch {
		case len(start) == 0 || start[0] != '{':
			a.Err = readForm(p, a.ContentTypes, a.Body)
		case len(start) != len(text):
			a.Err = ErrAmbiguous
		default:
			objects = append(objects, a)
			texts = append(texts, text)
		}
	}
	readMembers(objects, texts)
	for _, a := range all {
		p := &a.Prompt
		p.Named = p.Model
		if len(p.Model) > maxModel {
			p.Named = strings.Clone(p.Model[:maxModel])
			p.Model = ""
		}
	}
}

// readMembers reads requests whose bodies are texts that begin as JSON objects.
func readMembers(all []*Request, texts [][]byte) {
	tops, errs := readObjects(texts, 0, innerName)
	for k, a := range all {
		top := tops[k]
		p := &a.Prompt
		a.Err = errs[k]
		numbers := [][]byte{top.N, top.MaxTokens, top.MaxCompletionTokens, top.MaxOutputTokens}
		for i, object := range []json.RawMessage{top.Options, top.GenerationConfig} {
			if object == nil || a.Err != nil {
				continue
			}
			first := innerName + i
			inner, errs := readObjects([][]byte{object}, first, first+1)
			a.Err = errs[0]
			if i == 0 {
				numbers = append(numbers, inner[0].NumPredict)
			} else {
				numbers = append(numbers, inner[0].GeminiOutput)
			}
		}
		if a.Err != nil {
			continue
		}
		if p.Model == "" {
			_ = json.Unmarshal(top.Model, &p.Model) // a model that is no text stays ""
		}
		hasMedia := false
		for _, keyword := range mediaKeywords {
			hasMedia = hasMedia || bytes.Contains(texts[k], keyword)
		}
		if hasMedia {
			readMedia(p, texts[k])
		}
		if top.ServiceTier != nil || top.BedrockTier != nil || top.Speed != nil {
			p.ServiceTier = tierIn(top.ServiceTier, top.BedrockTier, top.Speed)
		}
		p.Background = string(top.Background) == "true"
		for i, text := range numbers {
			if text == nil { // else a whole number of 1 or more counts
				continue
			}
			n, err := strconv.ParseFloat(string(text), 64)
			switch {
			case err != nil && !errors.Is(err, strconv.ErrRange) || n < 1 || n != math.Trunc(n):
				continue
			case n > most:
				n = most
			}
			if i == 0 {
				p.Answers = int64(n)
			} else if int64(n) > p.Output {
				p.Output = int64(n)
			}
		}
		if n := p.Answers; n > 0 && p.Output > most/n {
			p.Output = most
		} else if n > 0 {
			p.Output *= n
		}
	}
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

// readObjects returns the members of JSON objects. Those with indexes in names from first to last-1 must not
// stand twice in one. Any other JSON has no members.
func readObjects(texts [][]byte, first, last int) ([]*members, []error) {
	all := make([]*members, len(texts))
	errs := make([]error, len(texts))
	for k, text := range texts {
		m := &members{}
		all[k] = m
		if len(text) == 0 || text[0] != '{' {
			continue
		}
		if json.Unmarshal(text, m) != nil {
			errs[k] = ErrAmbiguous
			continue
		}
		lower := bytes.ToLower(text)
		plain := true
		for _, spelling := range spellings {
			plain = plain && !bytes.Contains(lower, spelling)
		}
		found := []json.RawMessage{m.Model, m.Background, m.N, m.MaxTokens, m.MaxCompletionTokens,
			m.MaxOutputTokens, m.Options, m.GenerationConfig, m.ServiceTier, m.BedrockTier, m.Speed,
			m.NumPredict, m.GeminiOutput}
		for i := first; i < last; i++ {
			plain = plain && (found[i] == nil || bytes.Count(lower, names[i]) == 1)
		}
		if !plain {
			errs[k] = walk(text, first, last)
		}
	}
	return all, errs
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
