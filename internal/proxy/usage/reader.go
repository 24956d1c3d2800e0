package usage

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
)

// Reader reads the usage in the body of a response.
type Reader struct {
	*Frames

	last       []int64 // the last report of each number, by the constants of shapes
	head       []int64 // the numbers of the headers; nil without any
	added      []int64 // the last counts that shapes calls added; nil without any
	entries    []entry // the counts of each model, which replace last; nil without any
	searches   map[string]bool
	medium     int  // the number that has the answer, if it is no text; or Unreported
	events     int  // the events with new text since the last report of output
	characters int  // the characters of these texts
	hasText    bool // the body has text of a model
	reported   bool // last has a number above 0, or the body has only zeros and no text
	zero       bool // numbers that are all 0 were reported
	failed     bool // an error was reported
	free       bool // nothing was generated
	promptOnly bool
	model      string
	tier       string
	headerTier string
}

// Response is a response that was not read yet.
type Response struct {
	Header http.Header
	Start  []byte // the first bytes of the body
}

// New returns the Readers of responses. total is that of NewFrames, and counts each Start.
func New(total *int64, responses ...Response) []*Reader {
	all := make([]*Reader, len(responses))
	for i, f := range NewFrames(total, responses...) {
		h := responses[i].Header
		r := &Reader{Frames: f, last: append([]int64(nil), none...), medium: Unreported}
		f.reader = r
		all[i] = r
		for _, name := range []string{"X-Amzn-Bedrock-Service-Tier", "X-Gemini-Service-Tier"} {
			if values := h[name]; len(values) > 0 {
				r.headerTier = values[0]
			}
		}
		if len(h[inHeaders[0].name])+len(h[inHeaders[1].name]) > 0 {
			r.head = append([]int64(nil), none...)
			for _, one := range inHeaders {
				n, err := strconv.ParseInt(h.Get(one.name), 10, 64)
				if err == nil && n >= 0 && n <= most {
					r.head[one.number] = n
				}
			}
		}
		f.text = responses[i].Start
		f.buffered = int64(len(f.text))
		if f.mode != begin || f.encoded {
			release(f)
			_, _ = f.Write(responses[i].Start) // it has no error
		}
	}
	return all
}

// readBodies reads bodies that are one JSON object. It decodes no long fields: usage is short.
func readBodies(readers []*Reader, texts [][]byte) {
	const long = 64 << 10
	bodies := make([]map[string]interface{}, len(texts))
	for i, text := range texts {
		var fields map[string]json.RawMessage
		body := make(map[string]interface{})
		if len(text) <= long {
			_ = json.Unmarshal(text, &body) // a number that is too large leaves out only itself
		} else {
			_ = json.Unmarshal(text, &fields) // it is valid
		}
		for name, field := range fields {
			var value interface{} = true
			if len(field) <= long {
				_ = json.Unmarshal(field, &value)
			}
			body[name] = value
		}
		bodies[i] = body
	}
	readReports(readers, bodies)
	for i, r := range readers {
		if bytes.Contains(texts[i], searchWord) {
			readSearches(r, texts[i])
		}
		if !r.reported {
			readUnreported(r, texts[i])
		}
	}
}

// readUnreported reads a body that is one JSON object and reports no usage.
func readUnreported(r *Reader, text []byte) {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(text, &fields)
	r.failed = r.failed || isProblem(fields)
	if r.failed || r.zero {
		r.hasText = saysText(fields)
	}
	r.reported = r.zero && !r.hasText && !r.failed
	r.promptOnly = r.free || onlyCounts(fields)
}

// readEvent reads an event of a stream, which is JSON unless it holds no usage.
func (r *Reader) readEvent(text []byte) {
	if n := newText(r, text); n > 0 {
		r.Frames.Stream = true
		r.hasText = true
		r.events++
		r.characters += n
	}
	for _, keyword := range keywords {
		if !bytes.Contains(text, keyword) {
			continue
		}
		var event map[string]interface{}
		_ = json.Unmarshal(text, &event) // a number that is too large leaves out only itself
		readReports([]*Reader{r}, []map[string]interface{}{event})
		if bytes.Contains(text, searchWord) {
			readSearches(r, text)
		}
		r.Frames.Stream = r.Frames.Stream || r.reported
		return
	}
}
