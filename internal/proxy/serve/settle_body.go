package serve

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"sync/atomic"
)

const (
	// maxBody bounds the buffer of a body, and maxEvent that of an event of a stream.
	maxBody  = 4 << 20
	maxEvent = 1 << 20

	// maxBodies bounds the buffers of all bodies together.
	maxBodies = 64 << 20
)

// bufferedBytes is the size of all buffers of bodies; atomic.
var bufferedBytes int64

// settledBody reads costs from a JSON body, or from the last event with a cost of an event stream. It buffers
// the parts and decodes them as a whole, because an interpreter would take long for each byte.
type settledBody struct {
	reads    bool   // the body is JSON or a stream of events
	stream   bool   // the body is a stream of events
	invalid  string // why the body cannot be read, or ""
	buffered int64  // this body's share of bufferedBytes
	text     []byte // the body so far, or the current line of a stream
	event    []byte // the data of the current event
	long     bool   // the current event or line is too long
}

// begin reads the headers of the response.
func (b *settledBody) begin(h http.Header) {
	if values := h["Content-Encoding"]; len(values) > 0 && values[0] != "" && values[0] != "identity" {
		b.invalid = "encoded (" + values[0] + ")"
		return
	}
	kind := ""
	if values := h["Content-Type"]; len(values) > 0 {
		kind = strings.ToLower(values[0])
	}
	b.stream = strings.HasPrefix(kind, "text/event-stream")
	b.reads = b.stream || kind == "" || strings.Contains(kind, "json")
}

// whole reports whether the body is decoded at its end, as a single JSON text.
func (b *settledBody) whole() bool { return b.reads && !b.stream && b.invalid == "" && len(b.text) > 0 }

// buffer appends part to a buffer if the bounds allow, and reports whether it did.
func (b *settledBody) buffer(to, part []byte, most int) ([]byte, bool) {
	n := int64(len(part))
	if len(to)+len(part) > most || atomic.LoadInt64(&bufferedBytes)+n > maxBodies {
		return to, false
	}
	atomic.AddInt64(&bufferedBytes, n)
	b.buffered += n
	return append(to, part...), true
}

// drop subtracts n bytes from the buffered ones.
func (b *settledBody) drop(n int) {
	atomic.AddInt64(&bufferedBytes, -int64(n))
	b.buffered -= int64(n)
}

// release drops the buffers.
func (b *settledBody) release() {
	b.drop(int(b.buffered))
	b.text = nil
	b.event = nil
}

// write reads a part of the body.
func (b *settledBody) write(part []byte, hits []settledHit) {
	if !b.reads || b.invalid != "" {
		return
	}
	if !b.stream {
		ok := false
		if b.text, ok = b.buffer(b.text, part, maxBody); !ok {
			b.release()
			b.invalid = "too long"
		}
		return
	}
	for len(part) > 0 {
		end := bytes.IndexByte(part, '\n')
		if end < 0 {
			b.addToLine(part)
			return
		}
		line := part[:end]
		part = part[end+1:]
		if len(b.text) == 0 {
			b.readLine(line, hits)
			continue
		}
		b.addToLine(line)
		b.readLine(b.text, hits)
		b.drop(len(b.text))
		b.text = b.text[:0]
	}
}

func (b *settledBody) addToLine(part []byte) {
	ok := false
	if b.text, ok = b.buffer(b.text, part, maxEvent); !ok {
		b.long = true
	}
}

// readLine reads a line of a stream. An empty line ends an event.
func (b *settledBody) readLine(line []byte, hits []settledHit) {
	line = bytes.TrimSuffix(line, []byte("\r"))
	if len(line) == 0 {
		b.readEvent(hits)
		return
	}
	data := bytes.TrimPrefix(line, []byte("data:"))
	if len(data) == len(line) {
		return
	}
	ok := false
	if b.event, ok = b.buffer(b.event, data, maxEvent); !ok {
		b.long = true
	}
}

// readEvent reads the costs in an event, and begins the next one. The data lines are joined without
// separators, which does not change JSON.
func (b *settledBody) readEvent(hits []settledHit) {
	if !b.long {
		readCosts(b.event, hits)
	}
	b.drop(len(b.event))
	b.event = b.event[:0]
	b.long = false
}

// end reads the buffered rest of the body.
func (b *settledBody) end(hits []settledHit) {
	switch {
	case !b.reads || b.invalid != "":
	case b.stream:
		b.readLine(b.text, hits)
		b.readEvent(hits)
	default:
		readCosts(b.text, hits)
	}
}

// readCosts sets the text of each hit with a cost in a JSON text.
func readCosts(text []byte, hits []settledHit) {
	for i := range hits {
		path := hits[i].how.Path
		// Most events of a stream have no cost, so search before decoding.
		if path == nil || !bytes.Contains(text, []byte(path[len(path)-1])) {
			continue
		}
		if value, found := jsonAt(text, path); found {
			hits[i].text = value
			hits[i].found = true
		}
	}
}

// jsonAt returns the text of the value at path in JSON, and whether there is one other than null.
func jsonAt(text []byte, path []string) (string, bool) {
	rest := json.RawMessage(text)
	for _, name := range path {
		fields := map[string]json.RawMessage{}
		if json.Unmarshal(rest, &fields) != nil {
			return "", false
		}
		rest = fields[name]
		if rest == nil {
			return "", false
		}
	}
	return string(rest), string(rest) != "null"
}
