package page

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const (
	// answerTimeout bounds the time that a request waits for the database. The request then gets the previous
	// answer, if there is one.
	answerTimeout = 1200 * time.Millisecond
	// askTimeout bounds most statements.
	askTimeout = 20 * time.Second
	// stateTimeout bounds the statement of the state. It is below answerTimeout, so that a request gets the
	// error instead of the previous answer, and the page reports an outage within two seconds.
	stateTimeout = time.Second
	// loadFactor is the ratio of the time for which an answer is used to the time that its statement took.
	// Open pages therefore load the database by at most a twentieth.
	loadFactor = 20
	// maxAge bounds the age of an answer that a request gets.
	maxAge = time.Minute
)

// question is a statement. Its rows are the answer, which is used for between interval and maxInterval.
type question struct {
	data        dataset
	interval    time.Duration
	maxInterval time.Duration
	timeout     time.Duration
	sql         string
}

// questions has the questions of the API by name. Concurrent requests share a statement.
var questions = map[string]question{
	"state": {counterData, 400 * time.Millisecond, 400 * time.Millisecond, stateTimeout, `
SELECT * FROM rate_limit_state`},
	"proxies": {counterData, time.Second, maxAge, askTimeout, `
SELECT node, region, version, live, ended, cannot, policy, behind, seen, admitted, refused, undecided, locally
FROM rate_limit_proxies ORDER BY node`},
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

// why is the question why a sender was refused. Its arguments are the sender, and a time or "" for now.
var why = question{data: historyData, timeout: askTimeout,
	sql: `SELECT * FROM rate_limit_why($1, coalesce(nullif($2, '')::timestamptz, now()))`}

// answer is the last answer to a question.
type answer struct {
	mu   sync.Mutex // guards what follows
	text []byte
	err  error
	at   time.Time     // the time of text
	next time.Time     // the time from which a request asks again
	done chan struct{} // closed when the statement in flight ends; nil if none is
}

// serveAPI answers the question name.
func (s *Server) serveAPI(w http.ResponseWriter, r *http.Request, name string) {
	var text []byte
	var err error
	query := r.URL.Query()
	_, known := questions[name]
	switch {
	case name == "session":
		text, err = json.Marshal(map[string]string{"database": s.database, "version": s.options.Version})
	case name == "why":
		text, err = s.why(r.Context(), query.Get("who"), query.Get("at"))
	case known:
		text, err = s.last(r.Context(), name)
	default:
		err = &failure{http.StatusNotFound, "", "there is no such question: " + name}
	}
	if err != nil {
		newFailure(err).write(w)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(hideKeys(text)) // an error means that the client has closed the connection
}

// why asks why a sender was refused. It rejects an API key as the sender, because logs contain the URL.
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

// last returns the last answer to a question. It first asks again if the answer is old, and waits for up to
// answerTimeout.
func (s *Server) last(ctx context.Context, name string) ([]byte, error) {
	a := s.answers[name]
	a.mu.Lock()
	if a.done == nil && !time.Now().Before(a.next) {
		a.done = make(chan struct{})
		go s.ask(name, a)
	}
	done := a.done
	a.mu.Unlock()
	if done != nil {
		within, cancel := context.WithTimeout(ctx, answerTimeout)
		defer cancel()
		select {
		case <-done:
		case <-within.Done():
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.err != nil:
		return nil, a.err
	case a.text == nil || a.done != nil && time.Since(a.at) > maxAge:
		return nil, &failure{http.StatusServiceUnavailable, "", "the database has not answered yet"}
	}
	return a.text, nil
}

// ask asks a question, stores the answer, and wakes the requests that wait for it.
func (s *Server) ask(name string, a *answer) {
	q := questions[name]
	began := time.Now()
	text, err := s.pools.rows(s.closing, &q)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.next = time.Now().Add(q.interval)
	if err == nil {
		rest := min(max(q.interval, loadFactor*time.Since(began)), q.maxInterval)
		a.next, a.at, a.text = time.Now().Add(rest), time.Now(), text
	}
	a.err = err
	close(a.done)
	a.done = nil
}

// isMissing reports whether an error means that a table or a function does not exist.
func isMissing(err error) bool {
	of, answered := pgError(err)
	return answered && (of.Code == "42P01" || of.Code == "42883")
}
