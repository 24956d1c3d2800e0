package usage

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"net/http"
	"strings"
	"sync/atomic"
)

const (
	// MaxBody bounds what a Reader holds: a JSON text, an event of a stream, or an encoded body.
	MaxBody = 4 << 20

	// MaxBodies bounds what all Readers hold together.
	MaxBodies = 64 << 20

	// maxDecoded bounds the length of a decoded body.
	maxDecoded = 64 << 20
)

// mode selects the division of a body into events.
type mode int

const (
	unread mode = iota // the body has no usage
	begin              // JSON before its first character
	object             // JSON texts. There is one, unless the body is NDJSON with another type.
	array              // a JSON array
	lines              // NDJSON
	events             // an event stream
)

// Reader reads the body of a response.
type Reader struct {
	mode    mode
	encoded bool   // the body is encoded as gzip
	packed  []byte // the encoded body
	text    []byte // the current line, or the JSON that is not read yet
	event   []byte // the data of the current event of an event stream
	later   int    // the length of text at which to look for the end of an array's element
	began   bool   // a line was read
	cr      bool   // the last line ended with CR, and a LF after it belongs to it
	long    bool   // the current event is too long

	held  int64  // the bytes of the buffers
	total *int64 // the bytes that all readers hold; atomic

	last       [kinds]int64 // the last report of each kind
	contains   bool         // the last report of input contains the tokens of the cache
	events     int          // the events with new text since the last report of output
	characters int          // the characters of these texts
	promptOnly bool
	stream     bool
	invalid    string
}

// New returns the Reader of a response with headers h. total counts the bytes that all Readers hold.
func New(h http.Header, total *int64) *Reader {
	r := &Reader{total: total}
	for kind := range r.last {
		r.last[kind] = Unreported
	}
	kind := strings.ToLower(h.Get("Content-Type"))
	switch {
	case strings.HasPrefix(kind, "text/event-stream"):
		r.mode = events
		r.stream = true
	case strings.Contains(kind, "ndjson") || strings.Contains(kind, "jsonl") ||
		strings.Contains(kind, "json-lines") || strings.Contains(kind, "json-seq") ||
		strings.Contains(kind, "stream+json"):
		r.mode = lines
		r.stream = true
	case kind == "" || strings.Contains(kind, "json") || strings.HasPrefix(kind, "text/plain"):
		r.mode = begin
	}
	switch encoding := strings.ToLower(h.Get("Content-Encoding")); encoding {
	case "", "identity":
	case "gzip", "x-gzip":
		r.encoded = true
	default:
		r.stop("encoded (" + encoding + ")")
	}
	return r
}

// Holds reports whether the reader holds a part of the body that it has not read.
func (r *Reader) Holds() bool { return r.held > 0 }

// stop ends the reading of a body that cannot be read.
func (r *Reader) stop(reason string) {
	if r.mode != unread {
		r.invalid = reason
	}
	r.mode = unread
	r.release()
}

// release drops the buffers.
func (r *Reader) release() {
	r.packed = nil
	r.text = nil
	r.event = nil
	r.fits()
}

// fits counts the buffers, and reports whether they are within the bounds.
func (r *Reader) fits() bool {
	held := int64(len(r.packed) + len(r.text) + len(r.event))
	total := atomic.AddInt64(r.total, held-r.held)
	r.held = held
	return held <= MaxBody && total <= MaxBodies
}

// Write reads a part of the body. It returns no error.
func (r *Reader) Write(part []byte) (int, error) {
	if !r.encoded {
		r.read(part)
	} else if r.mode != unread {
		r.packed = append(r.packed, part...)
		if !r.fits() {
			r.stop("too long")
		}
	}
	return len(part), nil
}

// End reads the rest of the body, which may be incomplete, and returns what the body has reported. Callers
// call it once.
func (r *Reader) End() Usage {
	if r.encoded {
		r.decode()
	}
	switch r.mode {
	case events:
		r.read([]byte("\n\n"))
	case lines:
		r.read([]byte("\n"))
	case object:
		if json.Valid(r.text) {
			r.readBody(r.text)
		} else {
			r.elements()
		}
	case array:
		r.elements()
	}
	r.release()
	u := Usage{Input: r.last[input], CacheRead: r.last[cacheRead], CacheWrite: r.last[cacheWrite],
		Output: r.last[output], Stream: r.stream, PromptOnly: r.promptOnly, Invalid: r.invalid}
	if r.contains {
		for _, n := range []int64{u.CacheRead, u.CacheWrite} {
			if n > u.Input {
				n = u.Input
			}
			if n > 0 {
				u.Input -= n
			}
		}
	}
	u.Sent = int64(r.characters+3) / 4
	if int64(r.events) > u.Sent {
		u.Sent = int64(r.events)
	}
	return u
}

// decode reads a body that is encoded as gzip, up to its end or its first fault.
func (r *Reader) decode() {
	packed := r.packed
	decoder, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		if len(packed) > 0 {
			r.stop("encoded (gzip) with a fault")
		}
		return
	}
	part := make([]byte, 32<<10)
	for length := 0; r.mode != unread; {
		n, err := decoder.Read(part)
		r.read(part[:n])
		length += n
		if length > maxDecoded {
			r.stop("too long")
		} else if err != nil {
			return
		}
	}
}

// read reads a decoded part of the body.
func (r *Reader) read(part []byte) {
	switch r.mode {
	case unread:
	case events, lines:
		r.divide(part)
	default:
		r.text = append(r.text, part...)
		if r.mode == begin {
			r.start()
		}
		if r.mode == array && len(r.text) >= r.later {
			r.elements()
			r.later = 2 * len(r.text) // an element that comes in parts is not looked through for each part
		}
		if !r.fits() {
			r.stop("too long")
		}
	}
}

// start finds out what a JSON body is.
func (r *Reader) start() {
	r.text = bytes.TrimLeft(bytes.TrimPrefix(r.text, []byte("\ufeff")), " \t\r\n\x1e")
	switch {
	case len(r.text) == 0 || len(r.text) < 3 && r.text[0] == '\xef': // a byte order mark, which may go on
	case r.text[0] == '{':
		r.mode = object
	case r.text[0] == '[':
		r.mode = array
	default:
		r.mode = unread
		r.release()
	}
}

// elements reads the whole JSON texts at the start of the buffer, with what may stand between them.
func (r *Reader) elements() {
	const between = "[], \t\r\n\x1e"
	rest := bytes.TrimLeft(r.text, between)
	for len(rest) > 0 {
		decoder := json.NewDecoder(bytes.NewReader(rest))
		element := json.RawMessage{}
		if decoder.Decode(&element) != nil {
			break
		}
		rest = bytes.TrimLeft(rest[int(decoder.InputOffset()):], between)
		r.readEvent(element)
	}
	r.text = append(r.text[:0], rest...)
}

// divide reads the lines in a part of a stream. A line ends with LF, CR, or both.
func (r *Reader) divide(part []byte) {
	if r.cr && len(part) > 0 {
		r.cr = false
		part = bytes.TrimPrefix(part, []byte("\n"))
	}
	for end := bytes.IndexAny(part, "\r\n"); end >= 0; end = bytes.IndexAny(part, "\r\n") {
		line := part[:end]
		if len(r.text) > 0 {
			r.text = append(r.text, line...)
			line = r.text
		}
		r.readLine(line)
		r.text = r.text[:0]
		isCR := part[end] == '\r'
		part = part[end+1:]
		if isCR {
			r.cr = len(part) == 0
			part = bytes.TrimPrefix(part, []byte("\n"))
		}
	}
	r.text = append(r.text, part...)
	if !r.fits() {
		inLine := len(r.text) > 0
		r.release()
		r.long = true
		if inLine {
			r.text = []byte{'-'} // stands for the start of the line
		}
	}
}

// readLine reads a line of a stream. In an event stream, an empty line ends an event.
func (r *Reader) readLine(line []byte) {
	if !r.began {
		r.began = true
		line = bytes.TrimPrefix(line, []byte("\ufeff"))
	}
	if r.mode == lines {
		r.event = append(r.event, bytes.TrimLeft(line, "\x1e")...)
	} else if len(line) > 0 {
		if data := bytes.TrimPrefix(line, []byte("data:")); len(data) < len(line) {
			r.event = append(r.event, data...)
			r.event = append(r.event, '\n')
		}
		return
	}
	if !r.long && len(r.event) <= MaxBody {
		r.readEvent(r.event)
	}
	r.event = r.event[:0]
	r.long = false
}

// readBody reads a body that is one JSON text. It decodes no long fields: usage is short.
func (r *Reader) readBody(text []byte) {
	const long = 64 << 10
	var fields map[string]json.RawMessage
	if json.Unmarshal(text, &fields) != nil {
		return
	}
	body := make(map[string]interface{})
	for name, field := range fields {
		var value interface{} = true
		if len(field) <= long {
			_ = json.Unmarshal(field, &value) // a number that is too large leaves out only itself
		}
		body[name] = value
	}
	r.promptOnly = !report(r, body) && onlyCounts(body)
}

// readEvent reads an event of a stream, which is JSON unless it holds no usage.
func (r *Reader) readEvent(text []byte) {
	if len(text) == 0 {
		return
	}
	if n := newText(text); n > 0 {
		r.stream = true
		r.events++
		r.characters += n
	}
	for _, ending := range endings {
		if !bytes.Contains(text, ending) {
			continue
		}
		var event map[string]interface{}
		_ = json.Unmarshal(text, &event) // a number that is too large leaves out only itself
		if report(r, event) {
			r.stream = true
		}
		return
	}
}
