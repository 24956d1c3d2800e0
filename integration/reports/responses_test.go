package reports

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// once is a zone that admits one request an hour.
const once = "limit 1 1h"

// refusedOnce are two requests, of which the second is refused.
var refusedOnce = []ask{{want: "200×1"}, {want: "429×1"}}

// limited is an upstream that has X-RateLimit fields of its own.
func limited(w http.ResponseWriter, _ *http.Request) {
	for _, name := range []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"} {
		w.Header().Set(name, "7")
	}
	fmt.Fprint(w, "page")
}

var responses = []report{
	{"R34", "traefik/traefik#8677", []site{{
		only: "traefik", zones: []string{once},
		middlewares: object{"errors": object{"errors": object{"status": []string{"429"},
			"service": "upstream", "query": "/page"}}},
		upstream: func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.Path) },
		asks: []ask{{line: "GET /x", want: "200×1", body: "/x"},
			{line: "GET /x", want: "429×1", body: "/page"}},
		seen: "Retry-After: -\nX-RateLimit-Limit: -",
	}}},
	{"R35", "zalando/restful-api-guidelines#379; meltano/sdk#3672", []site{
		{handler: "fields x", zones: []string{once}, asks: refusedOnce, check: resetIsATime},
		{handler: "fields ietf", zones: []string{once}, asks: refusedOnce,
			check: func(v *visit) {
				h := v.got[1].Header
				want := `"` + v.id + `";r=0;t=` + h.Get("Retry-After")
				if !strings.HasPrefix(h.Get("RateLimit"), want) {
					v.Errorf("RateLimit is %s, want %s …", h.Get("RateLimit"), want)
				}
			}},
	}},
	{"F39", "RFC 9110, 14.2", []site{{
		zones: []string{"key all\nalgorithm fixed_window\nlimit 900000000000 1h\ncost 1000\nsettle bytes"},
		upstream: func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "file", time.Time{}, io.NewSectionReader(zeros{}, 0, fileSize))
		},
		check: inPieces,
	}}},
	{"R38", "RFC 8297", []site{{
		zones: []string{"limit 10 1h"},
		upstream: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", "</a.css>")
			w.WriteHeader(http.StatusEarlyHints)
			fmt.Fprint(w, "ok")
		},
		asks: []ask{{want: "200×1", body: "ok"}}, seen: fieldsOfTen + "\n" + earlyLink + ": </a.css>",
	}}},
}

// fieldsOfTen are the fields of the first of ten requests.
const fieldsOfTen = "X-RateLimit-Limit: 10\nX-RateLimit-Remaining: 9\nX-RateLimit-Reset: +"

// resetIsATime checks that X-RateLimit-Reset of a refusal is the time in Retry-After seconds.
func resetIsATime(v *visit) {
	v.Helper()
	h := v.got[1].Header
	wait, _ := strconv.ParseInt(h.Get("Retry-After"), 10, 64)
	reset, _ := strconv.ParseInt(h.Get("X-RateLimit-Reset"), 10, 64)
	const between = 60 // the refusal is that long ago at most
	if late := time.Now().Unix() + wait - reset; wait < 3000 || late < -1 || late > between {
		v.Errorf("Retry-After is %d and X-RateLimit-Reset %d, want one moment", wait, reset)
	}
}

// fileSize is the size of a file of zeros.
const fileSize = 500_000_000

type zeros struct{}

func (zeros) ReadAt(part []byte, _ int64) (int, error) { clear(part); return len(part), nil }

// inPieces reads pieces of a file, each from another place on and with a response that goes on to the end of
// the file, and checks that the counter has what was sent, up to what the buffers of sockets hold.
func inPieces(v *visit) {
	const pieces, size, buffers = 285, 300_000, 10_000_000
	for i := range pieces {
		c := v.dial()
		_ = c.conn.(*net.TCPConn).SetReadBuffer(64 << 10)
		c.send("GET /", fmt.Sprintf("Range: bytes=%d-", i*size))
		response, err := http.ReadResponse(c.in, nil)
		if err != nil || response.StatusCode != http.StatusPartialContent {
			v.Fatalf("%v, error %v; want 206", response, err)
		}
		if _, err := io.CopyN(io.Discard, response.Body, size); err != nil {
			v.Fatal(err)
		}
		_ = c.conn.Close() // before the body, which goes on
		_ = response.Body.Close()
	}
	before := int64(-1)
	v.Await("the settlements", func() bool {
		now := cluster.Query[int64](v, v.dsn, `SELECT sum(count)::bigint FROM rate_limit_ephemeral
			WHERE prefix = $1`, v.id)
		defer func() { before = now }()
		return now == before && now >= pieces*size
	})
	if most := int64(pieces * (size + buffers)); before > most {
		v.Errorf("the counter is %d, want at most %d", before, most)
	}
}
