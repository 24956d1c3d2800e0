package usage

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"strings"
	"sync/atomic"
)

const (
	// MaxBody bounds what Frames hold: a JSON text, an event of a stream, or an encoded body.
	MaxBody = 4 << 20

	// MaxBodies bounds what all Frames hold together.
	MaxBodies = 64 << 20

	// maxDecoded bounds the length of a decoded body.
	maxDecoded = 64 << 20
)

// mode selects the division of a body into events.
type mode int

const (
	unread mode = iota // the body has no usage
	begin              // before its first characters, which say what it is
	object             // JSON texts. There is one, unless the body is NDJSON with another type.
	array              // a JSON array
	lines              // NDJSON
	events             // an event stream
)

// Frames divides the body of a response into JSON texts: one, or the elements of an array or a stream.
type Frames struct {
	Stream  bool   // the response is a stream by its type, or by its first line
	Invalid string // the reason why the body cannot be read, or ""

	// Each reads a text, and does not keep it. Callers set it, unless reader does this.
	Each   func(text []byte)
	reader *Reader

	mode    mode
	encoded bool   // the body is encoded as gzip
	packed  []byte // the encoded body
	text    []byte // the current line, or the JSON that is not read yet
	event   []byte // the data of the current event of an event stream
	later   int    // the length of text at which to look for the end of an array's element
	began   bool   // a line was read
	cr      bool   // the last line ended with CR, and a LF after it belongs to it
	long    bool   // the current event is too long

	buffered int64  // the bytes of the buffers
	total    *int64 // the bytes that all Frames hold; atomic
}

// NewFrames returns the Frames of responses, without each Start. total counts the bytes that all Frames hold.
func NewFrames(total *int64, responses ...Response) []*Frames {
	all := make([]*Frames, len(responses))
	for i := range responses {
		h := responses[i].Header
		f := &Frames{total: total, mode: begin} // servers also name other types
		all[i] = f
		kind := strings.ToLower(h.Get("Content-Type"))
		if strings.HasPrefix(kind, "text/event-stream") {
			f.mode = events
			f.Stream = true
		} else if strings.Contains(kind, "ndjson") || strings.Contains(kind, "jsonl") ||
			strings.Contains(kind, "json-lines") || strings.Contains(kind, "json-seq") ||
			strings.Contains(kind, "stream+json") {
			f.mode = lines
			f.Stream = true
		}
		switch encoding := strings.ToLower(h.Get("Content-Encoding")); encoding {
		case "", "identity":
		case "gzip", "x-gzip":
			f.encoded = true
		default:
			f.stop("encoded (" + encoding + ")")
		}
	}
	return all
}

// Waiting reports whether f holds a part of the body that takes long to read.
func (f *Frames) Waiting() bool { return f.buffered > 16<<10 || f.encoded && f.buffered > 0 }

// stop ends the reading of a body that cannot be read.
func (f *Frames) stop(reason string) {
	if f.mode != unread {
		f.Invalid = reason
	}
	f.mode = unread
	release(f)
}

// release drops the buffers of bodies.
func release(all ...*Frames) {
	for _, f := range all {
		f.packed = nil
		f.text = nil
		f.event = nil
		atomic.AddInt64(f.total, -f.buffered)
		f.buffered = 0
	}
}

// fits counts the buffers, and reports whether they are within the bounds. It first drops most of each long
// text without spaces and punctuation, such as a picture.
func (f *Frames) fits() bool {
	const part = 64 << 10
	if len(f.text) > MaxBody {
		var kept []byte
		for rest := f.text; len(rest) > 0; {
			n := len(rest)
			if n > part {
				n = part
			}
			if n < part || bytes.ContainsAny(rest[:n], "\"\\,:{}[] \t\r\n") {
				kept = append(kept, rest[:n]...)
			}
			rest = rest[n:]
		}
		f.text = kept
	}
	held := int64(len(f.packed) + len(f.text) + len(f.event))
	total := atomic.AddInt64(f.total, held-f.buffered)
	f.buffered = held
	return held <= MaxBody && total <= MaxBodies
}

// Write reads a part of the body. It returns no error.
func (f *Frames) Write(part []byte) (int, error) {
	if !f.encoded {
		f.read(part)
	} else if f.mode != unread {
		f.packed = append(f.packed, part...)
		if !f.fits() {
			f.stop("too long")
		}
	}
	return len(part), nil
}

// End reads the rest of the body, which may be incomplete. Callers call it once.
func (f *Frames) End() {
	if text := end(f)[0]; text != nil {
		f.Each(text)
	}
}

// end reads the rest of bodies, and returns those that are a single text, which it does not read.
func end(all ...*Frames) [][]byte {
	single := make([][]byte, len(all))
	for i, f := range all {
		if f.encoded {
			f.decode()
		} else if f.mode == begin && len(f.text) > 0 && f.text[0] == '{' {
			f.mode = object
		}
		if f.mode == begin && len(f.text) > 0 {
			f.start()
		}
		switch f.mode {
		case events:
			f.read([]byte("\n\n"))
		case lines:
			f.read([]byte("\n"))
		case object:
			if json.Valid(f.text) {
				single[i] = f.text
			} else {
				f.elements()
			}
		case array:
			f.elements()
		}
	}
	release(all...)
	return single
}

// decode reads a body that is encoded as gzip, up to its end or its first fault.
func (f *Frames) decode() {
	decoder, err := gzip.NewReader(bytes.NewReader(f.packed))
	if err != nil {
		if len(f.packed) > 0 {
			f.stop("encoded (gzip) with a fault")
		}
		return
	}
	part := make([]byte, 32<<10)
	for length := 0; f.mode != unread; {
		n, err := decoder.Read(part)
		f.read(part[:n])
		length += n
		if length > maxDecoded {
			f.stop("too long")
		} else if err != nil {
			return
		}
	}
}

// read reads a decoded part of the body.
func (f *Frames) read(part []byte) {
	switch f.mode {
	case unread:
	case events, lines:
		f.divide(part)
	default:
		f.text = append(f.text, part...)
		if f.mode == begin {
			f.start()
		}
		if f.mode == array && len(f.text) >= f.later {
			f.elements()
			f.later = 2 * len(f.text) // an element that comes in parts is not looked through for each part
		}
		if !f.fits() {
			f.stop("too long")
		}
	}
}

// start finds out what a body is, unless that takes more of it.
func (f *Frames) start() {
	f.text = bytes.TrimLeft(bytes.TrimPrefix(f.text, []byte("\ufeff")), " \t\r\n\x1e")
	switch {
	case len(f.text) == 0 || len(f.text) < 3 && f.text[0] == '\xef': // a byte order mark, which may go on
	case f.text[0] == '{':
		f.mode = object
	case f.text[0] == '[':
		f.mode = array
	default:
		const fields, longest = "  data event id retry ", 5
		end := bytes.IndexAny(f.text, ": \r\n")
		if end < 0 && len(f.text) <= longest {
			return
		}
		if end >= 0 && f.text[end] == ':' && strings.Contains(fields, " "+string(f.text[:end])+" ") {
			text := f.text
			f.text = nil
			f.mode = events
			f.Stream = true
			f.divide(text)
			return
		}
		f.mode = unread
		release(f)
	}
}

// elements reads the whole JSON texts at the start of the buffer, with what may stand between them.
func (f *Frames) elements() {
	const between = "[], \t\r\n\x1e"
	rest := bytes.TrimLeft(f.text, between)
	for len(rest) > 0 {
		decoder := json.NewDecoder(bytes.NewReader(rest))
		element := json.RawMessage{}
		if decoder.Decode(&element) != nil {
			break
		}
		rest = bytes.TrimLeft(rest[int(decoder.InputOffset()):], between)
		if f.reader != nil {
			f.reader.readEvent(element)
		} else {
			f.Each(element)
		}
	}
	f.text = append(f.text[:0], rest...)
}

// divide reads the lines in a part of a stream. A line ends with LF, CR, or both.
func (f *Frames) divide(part []byte) {
	if f.cr && len(part) > 0 {
		f.cr = false
		part = bytes.TrimPrefix(part, []byte("\n"))
	}
	for end := bytes.IndexAny(part, "\r\n"); end >= 0; end = bytes.IndexAny(part, "\r\n") {
		line := part[:end]
		if len(f.text) > 0 {
			f.text = append(f.text, line...)
			line = f.text
		}
		f.readLine(line)
		f.text = f.text[:0]
		isCR := part[end] == '\r'
		part = part[end+1:]
		if isCR {
			f.cr = len(part) == 0
			part = bytes.TrimPrefix(part, []byte("\n"))
		}
	}
	f.text = append(f.text, part...)
	if !f.fits() {
		inLine := len(f.text) > 0
		release(f)
		f.long = true
		if inLine {
			f.text = []byte{'-'} // stands for the start of the line
		}
	}
}

// readLine reads a line of a stream. In an event stream, an empty line ends an event.
func (f *Frames) readLine(line []byte) {
	if !f.began {
		f.began = true
		line = bytes.TrimPrefix(line, []byte("\ufeff"))
	}
	if f.mode == lines {
		f.event = append(f.event, bytes.TrimLeft(line, "\x1e")...)
	} else if len(line) > 0 {
		if data := bytes.TrimPrefix(line, []byte("data:")); len(data) < len(line) {
			f.event = append(f.event, data...)
			f.event = append(f.event, '\n')
		}
		return
	}
	switch {
	case f.long || len(f.event) == 0 || len(f.event) > MaxBody:
	case f.reader != nil:
		f.reader.readEvent(f.event)
	default:
		f.Each(f.event)
	}
	f.event = f.event[:0]
	f.long = false
}
