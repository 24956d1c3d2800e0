package caddymodule_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/caddytest"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

var waits = regexp.MustCompile(`"retryAfter":\d+|\bwait \d+`)

// A transcript is a file of Caddyfiles and of requests to a Caddy that runs them. Lines:
//
//	sql: INSERT …                 SQL, for the database DSN of the Caddyfile below it
//	key 7 alice                   creates the API key KEY7 of a user there; KEY0 is a key without a row
//	> GET /a X-Key:x y | body     a request; a space in a header is _
//	= 200 99 of 100 retry | body  the response: its status, X-RateLimit-Remaining and -Limit, whether it has
//	                              Retry-After, the line "WWW-Authenticate: …", and the body
//	#                             a comment
//
// All other lines are a Caddyfile, which the first request after it loads.
func TestTranscripts(t *testing.T) {
	golden.ReplayAll(t, "testdata/live/*.txt", func(t *testing.T, text string) string {
		s := &transcript{t: t, keys: map[string]string{}}
		return s.replay(text)
	})
}

// transcript is a Caddy that replays a file.
type transcript struct {
	t         *testing.T
	caddy     *caddytest.Caddy
	dsn       string
	caddyfile string            // the lines of a Caddyfile since the last request
	keys      map[string]string // the API keys, by their names in the file
}

// replay runs a transcript and returns it with the responses of now.
func (s *transcript) replay(text string) string {
	s.t.Helper()
	var got strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "= ") {
			continue // the response of an earlier run
		}
		got.WriteString(line)
		if request, found := strings.CutPrefix(line, "> "); found {
			got.WriteString("= " + s.send(strings.TrimSuffix(request, "\n")) + "\n")
		} else if sql, found := strings.CutPrefix(line, "sql: "); found {
			s.openDatabase()
			cluster.Execute(s.t, s.dsn, sql)
		} else if strings.HasPrefix(line, "key ") {
			id, user := 0, ""
			if _, err := fmt.Sscanf(line, "key %d %s", &id, &user); err != nil {
				s.t.Fatal(err)
			}
			key, sql := policytest.NewKey(s.t, id, user)
			s.openDatabase()
			cluster.Execute(s.t, s.dsn, sql)
			s.keys[fmt.Sprint("KEY", id)] = key
		} else if !strings.HasPrefix(line, "#") {
			s.caddyfile += line
		}
	}
	return got.String()
}

// openDatabase creates the database, with the tables of the policy and two users, if there is none yet.
func (s *transcript) openDatabase() {
	s.t.Helper()
	if s.dsn == "" {
		s.dsn = policytest.Open(s.t, policytest.People)
		s.keys["KEY0"], _ = policytest.NewKey(s.t, 0, "")
	}
}

// send loads the Caddyfile above a request if there is one, sends the request, and summarizes the response.
func (s *transcript) send(line string) string {
	s.t.Helper()
	if strings.TrimSpace(s.caddyfile) != "" {
		if s.caddy == nil {
			s.caddy = caddytest.Start(s.t, ":PORT")
		}
		s.caddy.Renew() // each Caddyfile has counters of its own
		s.caddy.Load(strings.ReplaceAll(s.caddyfile, "DSN", s.dsn))
		s.caddyfile = ""
	}
	head, body, _ := strings.Cut(line, " | ")
	words := strings.Fields(head)
	r, err := http.NewRequest(words[0], "http://127.0.0.1:"+s.caddy.Port+words[1], strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, word := range words[2:] {
		name, value, _ := strings.Cut(strings.ReplaceAll(word, "_", " "), ":")
		for key, text := range s.keys {
			value = strings.ReplaceAll(value, key, text)
		}
		if r.Header.Add(name, value); name == "Host" {
			r.Host = value
		}
	}
	a, err := harness.AskBy(caddytest.Client, r)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.summarize(a)
}

// summarize formats a response without the values that differ from run to run.
func (s *transcript) summarize(a harness.Response) string {
	summary := fmt.Sprint(a.Status)
	if limit := a.Header["X-Ratelimit-Limit"]; limit != nil {
		summary += fmt.Sprintf(" %s of %s", strings.Join(a.Header["X-Ratelimit-Remaining"], ","),
			strings.Join(limit, ","))
	}
	if a.Header["Retry-After"] != nil {
		summary += " retry"
	}
	if login := a.Header.Get("WWW-Authenticate"); login != "" {
		summary += " WWW-Authenticate: " + login
	}
	body := strings.ReplaceAll(a.Body, s.caddy.Prefix(), "PREFIX")
	return strings.TrimSuffix(summary+" | "+waits.ReplaceAllString(body, "wait"), " | ")
}
