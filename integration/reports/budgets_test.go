package reports

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// gate holds the requests with X-Gate at the upstream of a site until a test opens the gate.
type gate struct {
	arrived, refused, cost atomic.Int64
	opened                 chan struct{}
}

var gates sync.Map // by host

func gateOf(id string) *gate {
	g, _ := gates.LoadOrStore(hostOf(id), &gate{opened: make(chan struct{})})
	return g.(*gate)
}

// gated is an upstream whose answers cost X-Cost, or in turn 35 tokens, a stream of five events that is cut,
// and nothing for an error.
func gated(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	cost, n, g := r.Header.Get("X-Cost"), int64(0), gateOf(strings.TrimSuffix(r.Host, hostOf("")))
	if r.Header.Get("X-Gate") != "" {
		n = g.arrived.Add(1)
		select {
		case <-g.opened:
		case <-r.Context().Done():
		}
	}
	if cost == "" {
		cost = "35"
		switch n % 3 {
		case 0:
			w.WriteHeader(http.StatusInternalServerError)
			return
		case 1:
			g.cost.Add(int64(5 + (len(small)+3)/4))
			sendCut(w)
			return
		}
		g.cost.Add(35)
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"usage":{"prompt_tokens":%s,"completion_tokens":0}}`, cost)
}

// sendCut sends five events of a stream, and closes the connection without the last chunk.
func sendCut(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	events := words[:len(words)/2000*5]
	fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"+
		"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(events), events)
}

// small is the body of a request that holds 20 tokens.
const small = `{"max_tokens":15}`

// floodSite sends requests to a site at once, which wait at its gate, and returns a channel with their
// result.
func (p *proxy) floodSite(id, body, cost string, n int) chan *harness.Result {
	result, g := make(chan *harness.Result, 1), gateOf(id)
	go func() {
		result <- harness.Run(context.Background(), harness.Load{Clients: n, Requests: n,
			Request: func(int) *http.Request {
				r := harness.Get("http://"+p.trusted+"/", "Host", hostOf(id), "X-Cost", cost, "X-Gate", "1",
					"X-Forwarded-For", "203.0.113.9")
				r.Method, r.ContentLength = http.MethodPost, int64(len(body))
				r.Body = io.NopCloser(strings.NewReader(body))
				return r
			},
			Replied: func(_ int, r harness.Reply) {
				if r.Status == http.StatusTooManyRequests {
					g.refused.Add(1)
				}
			}})
	}()
	return result
}

func (v *visit) flood(body, cost string, n int) chan *harness.Result {
	return v.floodSite(v.id, body, cost, n)
}

// awaitArrived waits until all of n requests are at the gates of sites or refused, and returns how many are
// at the gates.
func (v *visit) awaitArrived(n int64, sites ...string) (arrived int64) {
	v.Helper()
	v.Await(fmt.Sprint(n, " requests to be decided"), func() bool {
		refused := int64(0)
		arrived = 0
		for _, id := range sites {
			arrived += gateOf(id).arrived.Load()
			refused += gateOf(id).refused.Load()
		}
		return arrived+refused == n
	})
	return arrived
}

// ofThousand is a limit of a thousand tokens.
const ofThousand = "key all\nalgorithm fixed_window\nlimit 1000 1h\nunit tokens"

// usesTheRest checks that a request passes while something is left, whatever it may cost, and that ten agents
// hold what they name.
func usesTheRest(v *visit) {
	c := v.dial()
	for _, ask := range []struct {
		cost string
		used int64
	}{{"600", 600}, {"35", 635}} {
		check.Equal(v, "its cost "+ask.cost, c.ask("POST / {}", "X-Cost: "+ask.cost).Status,
			http.StatusOK)
		v.awaitUsed(v.id, ask.used)
	}
	result := v.flood(small, "35", 10)
	check.Equal(v, "the agents that pass", v.awaitArrived(10, v.id), 10)
	close(gateOf(v.id).opened)
	check.Equal(v, "the requests", (<-result).String(), "200×10")
	v.awaitUsed(v.id, 985)
}

// holdsWhatRuns checks that requests that run hold what they name, so that another one waits for a second.
func holdsWhatRuns(v *visit) {
	const calls = `{"max_tokens":600}`
	c, result := v.dial(), v.flood(calls, "35", 2)
	check.Equal(v, "the calls that run", v.awaitArrived(2, v.id), 2)
	third := c.ask("POST / "+calls, "X-Cost: 35")
	check.Equal(v, "the third call", fmt.Sprint(third.Status, " ", third.Header.Get("Retry-After")),
		"429 1")
	close(gateOf(v.id).opened)
	check.Equal(v, "the requests", (<-result).String(), "200×2")
	v.awaitUsed(v.id, 70)
	check.Equal(v, "the fourth call", c.ask("POST / "+calls, "X-Cost: 35").Status, http.StatusOK)
}

// fourteenTimes checks that a budget of fourteen reservations admits fourteen of 50 requests over two
// proxies, and in the end has what they cost.
func fourteenTimes(v *visit) {
	const other = "r52-a-caddy"
	here, there := v.flood(small, "", 25), v.other.floodSite(other, small, "", 25)
	check.Equal(v, "the requests that pass", v.awaitArrived(50, v.id, other), 14)
	cost := int64(0)
	for _, site := range []string{v.id, other} {
		close(gateOf(site).opened)
	}
	check.Equal(v, "the refusals", (<-here).Status[429]+(<-there).Status[429], 36)
	for _, site := range []string{v.id, other} {
		cost += gateOf(site).cost.Load()
	}
	v.awaitUsed("r52", cost)
}

// keepsItsDebt checks that requests at once cost in full what they cost, and that a larger amount does not
// forgive that.
func keepsItsDebt(v *visit) {
	result := v.flood(`{"max_tokens":1}`, "4035", 50)
	passed := v.awaitArrived(50, v.id)
	close(gateOf(v.id).opened)
	check.Equal(v, "the requests that pass", (<-result).Status[200], int(passed))
	v.awaitUsed("rule/"+v.id+"/t", passed*4035)
	cluster.Execute(v, v.dsn, v.fill("SELECT rate_limit_limit('ID', 't', '10000 tokens/1h')"))
	c := v.dial()
	v.Await("the new amount", func() bool {
		r := c.ask("POST / {}", "X-Cost: 1")
		check.Equal(v, "the status", r.Status, http.StatusTooManyRequests)
		return r.Header.Get("X-RateLimit-Limit-Tokens") == "10000"
	})
}

var budgets = []report{
	{"R48", "BerriAI/litellm#27509, #38647", []site{{zones: []string{ofThousand}, upstream: gated,
		check: usesTheRest}}},
	{"R49", "near R48", []site{{zones: []string{ofThousand}, upstream: gated, check: holdsWhatRuns}}},
	{"R52", "BerriAI/litellm#27639, #40050", []site{
		{only: "caddy", zones: []string{budgetOf14}, upstream: gated},
		{only: "traefik", zones: []string{budgetOf14}, upstream: gated, check: fourteenTimes},
	}},
	{"R53", "near R52", []site{{policy: " ", upstream: gated, check: keepsItsDebt,
		sql: `SELECT rate_limit_rule('ID', hosts => '{HOST}', count_by => '{ip}',
			algorithm => 'fixed_window', limits => '{t=1000 tokens/1h}');`}}},
}

const budgetOf14 = "prefix r52\nkey all\nalgorithm fixed_window\nlimit 280 1h\nunit tokens"
