//go:build soak

package integration

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// lane is a path with its limit, and the results that the test expects of its requests.
type lane struct {
	name     string
	onError  string // "": the path has no limit
	quota    int
	settings object
	governed bool // by the policy, not by a limit of the configuration

	durable   bool
	async     bool // without synchronous_commit: a crash loses the last fraction of a second
	leased    bool
	always    int     // the status of all responses with a decision; 0 means 200 or 429
	responses bool    // whether responses count as admissions, instead of requests at the upstream
	refill    float64 // units that become free in a second
	flights   bool    // quota bounds the requests in flight
	hostile   bool    // only for attackers
}

const (
	soakTimeout = time.Second     // the timeout of decisions
	soakMargin  = time.Second     // bounds the rest of a request
	keyLife     = 8 * time.Second // time after which requests have the next key
	forever     = "forever"       // the key of every eighth request, at all times
	longWindow  = "364d"
	turningFor  = 5 * time.Second // the window of the lane turning
)

// lanes are the paths of a soak. Most windows are so long that a key has one quota. On the lanes bucket and
// turning, responses count as admissions, because only a response shows the window of its decision.
var lanes = []lane{
	{name: "durable", onError: "deny", quota: 100, durable: true,
		settings: object{"limit": "100 " + longWindow, "algorithm": "fixed_window"}},
	{name: "leased", onError: "deny", quota: 100, durable: true, leased: true,
		settings: object{"limit": "100 " + longWindow, "algorithm": "fixed_window"}},
	{name: "sliding", onError: "deny", quota: 100, durable: true, leased: true,
		settings: object{"limit": "100 " + longWindow}},
	{name: "ephemeral", onError: "deny", quota: 100, settings: object{"limit": "100 " + longWindow}},
	{name: "local", onError: "local", quota: 100, durable: true,
		settings: object{"limit": "100 " + longWindow, "algorithm": "fixed_window"}},
	{name: "governed", onError: "deny", quota: 100, durable: true, async: true, governed: true},
	{name: "bucket", onError: "allow", quota: 60, responses: true, refill: 5,
		settings: object{"limit": "300 1m", "burst": "60", "algorithm": "token_bucket"}},
	{name: "turning", onError: "deny", quota: 40, durable: true, responses: true,
		settings: object{"limit": "40 " + turningFor.String(), "algorithm": "fixed_window"}},
	{name: "flights", onError: "deny", quota: 4, durable: true, flights: true,
		settings: object{"limit": "4", "algorithm": "in_flight", "key": "all"}},
	{name: "banned", onError: "deny", governed: true, always: http.StatusForbidden},
	{name: "unknown", onError: "deny", governed: true, always: http.StatusUnauthorized},
	{name: "none", always: http.StatusOK},
	{name: "attacked", onError: "deny", governed: true, hostile: true, settings: object{"timeout": "30s",
		"fields": "x ietf", "exempt": "192.0.2.0/24", "zones": []object{
			{"prefix": "attacked-key", "key": "{header.X-Api-Key} | {cookie.id} | {client_ip}",
				"limit": "200 1s", "cost": "{header.X-Cost}", "audit": "denied"},
			{"prefix": "attacked-plan", "key": "{header.X-Tenant}", "limit": "50 1m"},
			{"prefix": "attacked-trial", "limit": "1 1h", "mode": "shadow"},
			{"prefix": "attacked-login", "limit": "50 1m", "key": "{path}",
				"match": object{"paths": "/attacked/login,/attacked/api/*"}},
		}}},
}

const (
	statusSlow  = -1  // status of an oddResponse that came too late
	statusEnded = 499 // status of a request that has lost its slot
)

const undecidedAdmission = "admitted without a decision"

// use counts the outcomes of a key.
type use struct {
	lane        *lane
	sent        int
	first, last time.Duration // of the requests
	undecided   int           // responses without a decision
	// whether a response of each proxy took more than half of the timeout, so that the decision may be local
	slow     [soakProxies]bool
	admitted []time.Duration // the times of the admissions
}

// oddResponse is a response that is right only at the time of some fault.
type oddResponse struct {
	began, ended time.Duration
	proxy        int
	lane         *lane
	what         string
	status       int
	unheard      bool // no handler read the request
}

// soakLoad sends requests, and counts what the proxies do with them.
type soakLoad struct {
	began   time.Time
	urls    []string
	client  *http.Client
	running sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	uses     map[string]*use
	odds     []oddResponse
	sent     int
	statuses map[int]int
	recorded [soakProxies]recorded
	slowest  time.Duration
	busy     []span // times at which requests without a limit were slow, so the machine was busy
	flying   int    // requests in flight on the lane flights
	arrivals []arrival
}

// arrival has the number of requests in flight when a request arrived.
type arrival struct {
	at       time.Duration
	requests int
}

type span struct{ began, ended time.Duration }

// recorded counts the requests that the history of one proxy must have.
type recorded struct {
	sent, responded    int
	bySecond           map[int]int // responded
	decided, undecided map[int]int // responses of limits that deny requests without a decision, by second
}

func newSoakLoad() *soakLoad {
	s := &soakLoad{began: time.Now(), uses: map[string]*use{}, statuses: map[int]int{},
		client: &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	for i := range s.recorded {
		s.recorded[i] = recorded{bySecond: map[int]int{}, decided: map[int]int{}, undecided: map[int]int{}}
	}
	return s
}

// upstream starts the server behind the proxies, which counts the requests that have passed.
func (s *soakLoad) upstream(t *testing.T) string {
	return harness.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		name := strings.Trim(r.URL.Path, "/")
		for i := range lanes {
			switch l := &lanes[i]; {
			case l.name != name:
			case l.flights:
				s.hold(r.Context())
			case !l.responses && l.quota > 0:
				s.admit(l, r.Header.Get("X-Key"))
			}
		}
		fmt.Fprint(w, "ok")
	})
}

// admit counts an admission.
func (s *soakLoad) admit(l *lane, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.use(l, key)
	u.admitted = append(u.admitted, time.Since(s.began))
}

// hold holds a request in flight for up to 300 ms, and records how many requests are in flight.
func (s *soakLoad) hold(ctx context.Context) {
	s.mu.Lock()
	s.flying++
	s.arrivals = append(s.arrivals, arrival{time.Since(s.began), s.flying})
	s.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(50+rand.IntN(250)) * time.Millisecond):
	}
	s.mu.Lock()
	s.flying--
	s.mu.Unlock()
}

// use returns the counts of a key. The caller holds the mutex.
func (s *soakLoad) use(l *lane, key string) *use {
	u := s.uses[l.name+" "+key]
	if u == nil {
		u = &use{lane: l, first: time.Since(s.began)}
		s.uses[l.name+" "+key] = u
	}
	return u
}

// keyAt returns the key of a client's request n at a time.
func keyAt(at time.Duration, n int) string {
	if n%8 == 0 {
		return forever
	}
	return strconv.Itoa(int(at / keyLife))
}

// run sends about 320 requests per second to all lanes of all proxies, until the context ends.
func (s *soakLoad) run(ctx context.Context) {
	for proxy := range s.urls {
		for i := range lanes {
			clients := 3
			if lanes[i].quota == 0 {
				clients = 1
			}
			if lanes[i].hostile {
				clients = 0
			}
			for range clients {
				s.running.Go(func() {
					random := rand.New(rand.NewPCG(rand.Uint64(), 0))
					for n := random.IntN(8); ; n++ {
						select {
						case <-ctx.Done():
							return
						case <-time.After(time.Duration(random.Int64N(int64(500 * time.Millisecond)))):
						}
						s.send(proxy, &lanes[i], n)
					}
				})
			}
		}
	}
}

// overload sends requests of 2,500 clients to a proxy concurrently, on the lanes that the upstream counts.
func (s *soakLoad) overload(ctx context.Context, proxy int) {
	var counted []*lane
	for i := range lanes {
		if l := &lanes[i]; l.quota > 0 && !l.responses && l.onError == "deny" {
			counted = append(counted, l)
		}
	}
	harness.Run(ctx, harness.Load{Clients: 2500, Request: func(i int) *http.Request {
		return s.request(s.urls[proxy], counted[i%len(counted)], keyAt(time.Since(s.began), 1))
	}, Replied: func(_ int, reply harness.Reply) {
		s.mu.Lock()
		defer s.mu.Unlock()
		r := &s.recorded[proxy]
		r.sent++
		if reply.Err == nil {
			r.responded++
			r.bySecond[int(time.Since(s.began)/time.Second)]++
		}
	}})
}

// send sends request n of a client.
func (s *soakLoad) send(proxy int, l *lane, n int) {
	began := time.Since(s.began)
	key := keyAt(began, n)
	s.mu.Lock()
	s.sent++
	u := s.use(l, key)
	u.sent++
	s.mu.Unlock()
	response, err := s.client.Do(s.request(s.urls[proxy], l, key))
	if err == nil {
		_, err = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
	}
	ended := time.Since(s.began)
	s.mu.Lock()
	defer s.mu.Unlock()
	u.last = max(u.last, ended)
	u.slow[proxy] = u.slow[proxy] || ended-began > soakTimeout/2
	r := &s.recorded[proxy]
	if l.onError != "" {
		r.sent++
	} else if ended-began > soakTimeout/4 {
		s.busy = append(s.busy, span{began, ended})
	}
	s.slowest = max(s.slowest, ended-began)
	strange := oddResponse{began: began, ended: ended, proxy: proxy, lane: l}
	if ended-began > soakTimeout+soakMargin {
		strange.what, strange.status = "responded", statusSlow
		s.odds = append(s.odds, strange)
	}
	if err != nil {
		strange.what, strange.unheard = err.Error(), harness.Unheard(err)
		s.odds = append(s.odds, strange)
		return
	}
	status := response.StatusCode
	s.statuses[status]++
	if l.onError != "" {
		r.responded++
		r.bySecond[int(ended/time.Second)]++
	}
	if l.onError == "deny" && status == http.StatusServiceUnavailable {
		r.undecided[int(ended/time.Second)]++
	} else if l.onError == "deny" {
		r.decided[int(ended/time.Second)]++
	}
	strange.status = status
	strange.what = fmt.Sprint("status ", status)
	decided := response.Header.Get("X-RateLimit-Limit") != ""
	switch {
	case status == http.StatusServiceUnavailable:
		u.undecided++
		s.odds = append(s.odds, strange)
	case l.always != 0:
		if status != l.always {
			s.odds = append(s.odds, strange)
		}
	case status == http.StatusOK && !decided && l.onError == "allow":
		u.undecided++
	case status == http.StatusOK && !decided:
		strange.what, strange.status = undecidedAdmission, 0
		s.odds = append(s.odds, strange)
	case status == http.StatusOK && l.responses:
		if l.refill == 0 { // the end of the window
			u = s.use(l, key+" "+response.Header.Get("X-RateLimit-Reset"))
			u.last = ended
		}
		u.admitted = append(u.admitted, ended)
	case status != http.StatusOK && status != http.StatusTooManyRequests:
		s.odds = append(s.odds, strange)
	}
}

func (s *soakLoad) request(url string, l *lane, key string) *http.Request {
	request, err := http.NewRequest(http.MethodGet, url+"/"+l.name, nil)
	if err != nil {
		panic(err)
	}
	switch l.name {
	case "banned":
		key = "mallory"
	case "unknown":
		request.Header.Set("X-Api-Key", "invented")
	}
	request.Header.Set("X-Key", key)
	return request
}
