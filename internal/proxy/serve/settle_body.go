package serve

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/usage"
)

// maxEvent bounds the buffer of an event of a stream.
const maxEvent = 1 << 20

// bufferedBytes is the total size of the buffers of bodies, including those of package usage; atomic.
var bufferedBytes int64

// settledBody reads costs from a JSON body, or from the last event with a cost of an event stream. It buffers
// the parts and decodes them as a whole, because an interpreter would take long for each byte.
type settledBody struct {
	reads    bool   // the body is JSON or a stream of events
	stream   bool   // the body is a stream of events
	invalid  string // the reason why the body cannot be read, or ""
	text     []byte // the body so far, or the current line of a stream
	event    []byte // the data of the current event
	long     bool   // the current event is too long
	buffered int64  // this body's share of bufferedBytes
}

// start reads the headers of the response.
func (b *settledBody) start(h http.Header) {
	if encoding := h.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		b.invalid = "encoded (" + encoding + ")"
		return
	}
	kind := strings.ToLower(h.Get("Content-Type"))
	b.stream = strings.HasPrefix(kind, "text/event-stream")
	b.reads = b.stream || kind == "" || strings.Contains(kind, "json")
}

// whole reports whether the body is decoded at its end, as a single JSON text.
func (b *settledBody) whole() bool { return b.reads && !b.stream && b.invalid == "" && len(b.text) > 0 }

// fits counts the buffers, and reports whether they are within the bounds: maxBytes for this body, and
// usage.MaxBodies for all bodies.
func (b *settledBody) fits(maxBytes int) bool {
	n := len(b.text) + len(b.event)
	total := atomic.AddInt64(&bufferedBytes, int64(n)-b.buffered)
	b.buffered = int64(n)
	return n <= maxBytes && total <= usage.MaxBodies
}

// release drops the buffers.
func (b *settledBody) release() {
	b.text = nil
	b.event = nil
	b.fits(0)
}

// write reads a part of the body.
func (b *settledBody) write(part []byte, hits []settledHit) {
	if !b.reads || b.invalid != "" {
		return
	}
	b.text = append(b.text, part...)
	if !b.stream {
		if !b.fits(usage.MaxBody) {
			b.release()
			b.invalid = "too long"
		}
		return
	}
	rest := b.text
	for end := bytes.IndexByte(rest, '\n'); end >= 0; end = bytes.IndexByte(rest, '\n') {
		b.readLine(rest[:end], hits)
		rest = rest[end+1:]
	}
	b.text = append(b.text[:0], rest...)
	if !b.fits(maxEvent) {
		inLine := len(b.text) > 0
		b.release()
		b.long = true
		if inLine {
			b.text = []byte{'-'} // stands for the start of the line
		}
	}
}

// readLine reads a line of a stream. An empty line ends an event. readLine joins the data lines of an event
// without separators, which does not change JSON.
func (b *settledBody) readLine(line []byte, hits []settledHit) {
	line = bytes.TrimSuffix(line, []byte("\r"))
	if data := bytes.TrimPrefix(line, []byte("data:")); len(data) < len(line) {
		b.event = append(b.event, data...)
	}
	if len(line) == 0 {
		if !b.long {
			readCosts(b.event, hits)
		}
		b.event = b.event[:0]
		b.long = false
	}
}

// end reads the buffered rest of the body.
func (b *settledBody) end(hits []settledHit) {
	if b.stream {
		b.write([]byte("\n\n"), hits)
	} else if b.whole() {
		readCosts(b.text, hits)
	}
}

// readCosts sets the values of each hit with a cost in a JSON text.
func readCosts(text []byte, hits []settledHit) {
	for i := range hits {
		path := hits[i].how.Path
		// Most events of a stream have no cost, so search before decoding.
		if path == nil || !bytes.Contains(text, []byte(path[len(path)-1])) {
			continue
		}
		if value := jsonAt(text, path); value != "" && value != "null" {
			hits[i].values = []string{value}
		}
	}
}

// jsonAt returns the JSON of the value at path, or "" if the value is missing.
func jsonAt(text []byte, path []string) string {
	rest := json.RawMessage(text)
	for _, name := range path {
		fields := map[string]json.RawMessage{}
		if json.Unmarshal(rest, &fields) != nil {
			return ""
		}
		rest = fields[name]
	}
	return string(rest)
}
