package serve

import (
	"bytes"
	"encoding/json"
	"math"
	"net/http"
	"strconv"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/usage"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// bufferedBytes is the total size of the buffers of bodies; atomic.
var bufferedBytes int64

// readBody reads the costs in the body of a response with headers h.
func (s *Settling) readBody(h http.Header) {
	s.body = usage.NewFrames(&bufferedBytes, usage.Response{Header: h})[0]
	s.body.Each = s.readCosts
}

// readCosts sets the values of each hit with a cost in a JSON text: a body, or an element of a stream. The
// last element with a cost counts.
func (s *Settling) readCosts(text []byte) {
	for i := range s.hits {
		path := s.hits[i].source.Path
		// Most events of a stream have no cost, so search before decoding. Names can be written with \u.
		if path == nil ||
			!bytes.Contains(text, []byte(path[len(path)-1])) && !bytes.Contains(text, []byte("\\u")) {
			continue
		}
		if value := jsonAt(text, path); value != "" && value != "null" {
			s.hits[i].values = []string{value}
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

// parseCost returns the cost that a text has, and reports whether it has one. In JSON, 77.0 is whole.
func parseCost(text string, isJSON bool) (int64, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil && isJSON {
		var number float64
		number, err = strconv.ParseFloat(text, 64)
		if number != math.Trunc(number) || math.Abs(number) > ratelimit.MaxEvents {
			return 0, false
		}
		n = int64(number)
	}
	return n, err == nil && n >= 0 && n <= ratelimit.MaxEvents
}
