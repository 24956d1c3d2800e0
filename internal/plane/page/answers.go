package page

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const (
	// answerTimeout is the longest time for which a request waits for a new answer. Then the request gets the
	// previous answer, if there is one.
	answerTimeout = 1200 * time.Millisecond
	// askTimeout bounds most statements.
	askTimeout = 20 * time.Second
	// stateTimeout bounds the statement of the state. Because stateTimeout is below answerTimeout, a request
	// gets the error and not the previous answer, and the page reports an outage within two seconds.
	stateTimeout = time.Second
	// loadFactor is the ratio of an answer's lifetime to the duration of its statement. Open pages therefore
	// use at most a twentieth of a connection's time.
	loadFactor = 20
	// maxAge bounds the age of an answer that a request gets.
	maxAge = time.Minute
)

// question is a statement with rows that are its answer. An answer lives for 20 times the duration of the
// statement, but at least interval and at most maxInterval.
type question struct {
	data        dataset
	interval    time.Duration
	maxInterval time.Duration
	timeout     time.Duration
	sql         string
}

// questions maps the names in the API to questions. Concurrent requests share a statement.
var questions = map[string]question{
	"state": {counterData, 400 * time.Millisecond, 400 * time.Millisecond, stateTimeout, `
SELECT * FROM rate_limit_state`},
	"proxies": {counterData, time.Second, maxAge, askTimeout, `
SELECT node, region, version, live, ended, cannot, policy, behind, late, seen, admitted, refused, undecided,
	locally FROM rate_limit_proxies ORDER BY node`},
	"minutes": {historyData, 2 * time.Second, maxAge, askTimeout, `SELECT * FROM rate_limit_minutes
WHERE time > now() - interval '1 hour' ORDER BY time`},
	"changes": {policyData, 2 * time.Second, maxAge, askTimeout, `
SELECT at, by, kind, which, what FROM rate_limit_changed
WHERE at > now() - interval '1 hour' ORDER BY at DESC, seq DESC LIMIT 50`},
	"refused": {historyData, 2 * time.Second, maxAge, askTimeout, `
SELECT * FROM rate_limit_refused(now() - interval '1 hour')`},
	"near": {policyData, 5 * time.Second, maxAge, askTimeout, `
SELECT rule, limit_name, key, used, quota, percent, count(*) OVER () AS total
FROM rate_limit_near ORDER BY percent DESC, rule, limit_name, key LIMIT 50`},
	"bans": {policyData, 2 * time.Second, maxAge, askTimeout, `
SELECT kind, banned, until, reason, banned_at, banned_by, count(*) OVER () AS total
FROM rate_limit_banned ORDER BY banned_at DESC, id LIMIT 200`},
}

// why selects the refusals of a sender. The arguments of the statement are the sender and a time.
var why = question{data: historyData, timeout: askTimeout, sql: `SELECT * FROM rate_limit_why($1, $2)`}

// answer is the last answer to a question.
type answer struct {
	mu   sync.Mutex // guards the fields below
	body []byte
	err  error
	at   time.Time     // time of body
	next time.Time     // earliest time of the next statement
	done chan struct{} // closed when the statement in flight ends; nil without a statement in flight
}

// serveAPI responds with the answer to the question name.
func (s *Server) serveAPI(w http.ResponseWriter, r *http.Request, name string) {
	var body []byte
	var err error
	query := r.URL.Query()
	_, isQuestion := questions[name]
	switch {
	case name == "session":
		body, err = json.Marshal(map[string]string{"database": s.database, "version": s.options.Version})
	case name == "why":
		body, err = s.why(r.Context(), query.Get("who"), cmp.Or(query.Get("at"), "now"))
	case isQuestion:
		body, err = s.last(r.Context(), name)
	default:
		err = &failure{http.StatusNotFound, "", "there is no such question: " + name}
	}
	if err != nil {
		newFailure(err).write(w)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(hideKeys(body)) // an error means that the client has closed the connection
}

// why returns the refusals of a sender. An API key is not accepted as the sender, because it would be in the
// URL, which logs contain.
func (s *Server) why(ctx context.Context, who, at string) ([]byte, error) {
	switch {
	case apiKeys.MatchString(who):
		return nil, &failure{http.StatusBadRequest, "who",
			"who: must be no API key: ask by its number, such as #7"}
	case who == "":
		return nil, &ratelimit.FieldError{Field: "who",
			Want: "a user, an address, # and the number of an API key, or the key of a counter"}
	}
	select {
	case s.senderSlots <- struct{}{}:
		defer func() { <-s.senderSlots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return s.pools.rows(ctx, &why, who, at)
}

// last returns the last answer to a question. If the answer is old, last first runs the statement again, and
// waits for up to answerTimeout.
func (s *Server) last(ctx context.Context, name string) ([]byte, error) {
	a := s.answers[name]
	a.mu.Lock()
	if a.done == nil && !time.Now().Before(a.next) {
		a.done = make(chan struct{})
		go s.refresh(name, a)
	}
	done := a.done
	a.mu.Unlock()
	if done != nil {
		waitCtx, cancel := context.WithTimeout(ctx, answerTimeout)
		defer cancel()
		select {
		case <-done:
		case <-waitCtx.Done():
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.err != nil:
		return nil, a.err
	case a.body == nil || a.done != nil && time.Since(a.at) > maxAge:
		return nil, &failure{http.StatusServiceUnavailable, "", "the database has not answered yet"}
	}
	return a.body, nil
}

// refresh runs a question's statement, stores the answer, and wakes the requests that wait for it.
func (s *Server) refresh(name string, a *answer) {
	q := questions[name]
	start := time.Now()
	body, err := s.pools.rows(s.closing, &q)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.next = time.Now().Add(q.interval)
	if err == nil {
		lifetime := min(max(q.interval, loadFactor*time.Since(start)), q.maxInterval)
		a.next, a.at, a.body = time.Now().Add(lifetime), time.Now(), body
	}
	a.err = err
	close(a.done)
	a.done = nil
}

// isMissing reports whether an error means that a table or a function does not exist.
func isMissing(err error) bool {
	pgErr, ok := pgError(err)
	return ok && (pgErr.Code == "42P01" || pgErr.Code == "42883")
}
