package page

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const (
	// answerTimeout bounds the time for which a request waits for a new answer. After it, the request gets
	// the previous answer, or an error if there is none.
	answerTimeout = 1200 * time.Millisecond
	// askTimeout bounds each statement except that of the question "state".
	askTimeout = 20 * time.Second
	// stateTimeout bounds the statement of the question "state". It is below answerTimeout, so that during an
	// outage the statement fails while the request still waits. The request then gets the error instead of
	// the previous answer, and the page reports the outage within two seconds.
	stateTimeout = time.Second
	// loadFactor is the ratio of the time for which an answer stays valid to the duration of its statement. A
	// question therefore keeps a connection busy for at most a twentieth of the time, for any number of open
	// pages.
	loadFactor = 20
	// maxAge is the age from which a previous answer is not returned: the request gets an error instead.
	maxAge = time.Minute
)

// question is a statement for the database; the rows that it returns are the answer. An answer stays valid
// for loadFactor times the duration of its statement, but at least for interval and at most for maxInterval.
type question struct {
	data        dataset
	interval    time.Duration
	maxInterval time.Duration
	timeout     time.Duration
	sql         string
}

// questions maps the names in the API to questions. Requests that ask the same question at the same time wait
// for one statement.
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
SELECT r.*, rate_limit_key_name(NULL, substring(prefix FROM '^rule/(.*)$'), name) AS key_name
FROM rate_limit_refused(now() - interval '1 hour') AS r`},
	"near": {policyData, 5 * time.Second, maxAge, askTimeout, `
SELECT rule, limit_name, key, rate_limit_key_name(NULL, rule, key) AS key_name, used, held, quota, unit,
	percent, count(*) OVER () AS total
FROM rate_limit_near ORDER BY percent DESC, rule, limit_name, key LIMIT 50`},
	"money": {counterData, 5 * time.Second, maxAge, askTimeout, `
SELECT s.*, (SELECT max(currency) FROM rate_limit_ledger_retention) AS currency FROM rate_limit_spent() s`},
	"corrections": {counterData, 5 * time.Second, maxAge, askTimeout, `
SELECT * FROM rate_limit_corrections()`},
	"prices": {policyData, 5 * time.Second, maxAge, askTimeout, `
SELECT p.model, lower(p.valid) AS since, upper(p.valid) AS until, p.input, p.output, ARRAY(
		SELECT rtrim(r.key, '.') || '=' || r.value FROM jsonb_each_text(rate_limit_rates(p)) r
		WHERE r.key NOT IN ('input', 'output') ORDER BY r.key) AS parts, count(*) OVER () AS total
FROM (SELECT DISTINCT ON (model) * FROM rate_limit_prices WHERE valid @> now()
	ORDER BY model, lower(valid) DESC NULLS LAST) AS p ORDER BY p.model LIMIT 50`},
	"notices": {counterData, 5 * time.Second, maxAge, askTimeout, `
SELECT rule, limit_name, key, percent, used, quota, currency, at, void_at < 'infinity' AS void,
	count(*) OVER () AS total
FROM rate_limit_notices ORDER BY at DESC, rule, limit_name, key, percent DESC LIMIT 50`},
	"bans": {policyData, 2 * time.Second, maxAge, askTimeout, `
SELECT kind, banned, until, reason, banned_at, banned_by, count(*) OVER () AS total
FROM rate_limit_banned ORDER BY banned_at DESC, id LIMIT 200`},
}

// refusals is the statement for the refusals of a sender. Its arguments are the sender and a time, as text.
var refusals = question{data: historyData, timeout: askTimeout, sql: `SELECT * FROM rate_limit_why($1, $2)`}

// answer holds the latest answer to a question, and the state of the statement that renews it.
type answer struct {
	mu        sync.Mutex // guards the fields below
	body      []byte
	err       error
	bodyTime  time.Time     // when body was received
	nextStart time.Time     // the statement does not run again before this time
	inFlight  chan struct{} // closed when the running statement ends; nil if none runs
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
		body, err = s.refusalsOf(r.Context(), query.Get("who"), cmp.Or(query.Get("at"), "now"))
	case isQuestion:
		body, err = s.latest(r.Context(), name)
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

// refusalsOf returns the refusals of a sender up to a time. refusalsOf does not accept an API key as the
// sender, because the key would be in the URL, and so in logs.
func (s *Server) refusalsOf(ctx context.Context, sender, timeText string) ([]byte, error) {
	switch {
	case apiKeys.MatchString(sender):
		return nil, &failure{http.StatusBadRequest, "who",
			"who: must be no API key: ask by its number, such as #7"}
	case sender == "":
		return nil, &ratelimit.FieldError{Field: "who",
			Want: "a user, an address, # and the number of an API key, or the key of a counter"}
	}
	select {
	case s.senderQueries <- struct{}{}:
		defer func() { <-s.senderQueries }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return s.pools.rows(ctx, &refusals, sender, timeText)
}

// latest returns the latest answer to a question. If that answer is no longer valid, latest starts the
// statement again, and waits up to answerTimeout for its end before it returns the previous answer.
func (s *Server) latest(ctx context.Context, name string) ([]byte, error) {
	a := s.answers[name]
	a.mu.Lock()
	if a.inFlight == nil && !time.Now().Before(a.nextStart) {
		a.inFlight = make(chan struct{})
		go s.refresh(name, a)
	}
	inFlight := a.inFlight
	a.mu.Unlock()
	if inFlight != nil {
		waitCtx, cancel := context.WithTimeout(ctx, answerTimeout)
		defer cancel()
		select {
		case <-inFlight:
		case <-waitCtx.Done():
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.err != nil:
		return nil, a.err
	case a.body == nil || a.inFlight != nil && time.Since(a.bodyTime) > maxAge:
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
	a.nextStart = time.Now().Add(q.interval)
	if err == nil {
		lifetime := min(max(q.interval, loadFactor*time.Since(start)), q.maxInterval)
		a.nextStart, a.bodyTime, a.body = time.Now().Add(lifetime), time.Now(), body
	}
	a.err = err
	close(a.inFlight)
	a.inFlight = nil
}

// isMissing reports whether an error means that a table or a function does not exist.
func isMissing(err error) bool {
	pgErr, ok := pgError(err)
	return ok && (pgErr.Code == pg.UndefinedTable || pgErr.Code == pg.UndefinedFunction)
}
