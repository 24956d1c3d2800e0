package page

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Options are the settings of a Server.
type Options struct {
	// DSN is the database of the counters. Policy and History are those of the policy and the history, "" if they are
	// in the same.
	DSN, Policy, History string
	// Write lets people change something.
	Write bool
	// Hosts are the names under which the page is reached, besides addresses, localhost, and names with a certificate.
	Hosts []string
	// Who is the name of the person that a request is of, "" if it is not known. Nil knows nobody.
	Who func(*http.Request) string
	// Version is that of the program.
	Version string
}

// Server serves the page and its API.
type Server struct {
	options   Options
	hosts     []string
	token     string
	secret    []byte // signs confirmations
	database  string
	started   time.Time
	databases *questionPool
	collector *collector
	streams   chan struct{} // one for each open stream

	mu        sync.Mutex           // guards confirmed
	confirmed map[string]time.Time // the confirmations that were used, until they end
}

// New returns a server. It does not touch the network before a request.
func New(o Options) (*Server, error) {
	at := o.dsns()
	database, err := at.text()
	if err != nil {
		return nil, err
	}
	token, err := newToken()
	if err != nil {
		return nil, err
	}
	secret, err := newToken()
	if err != nil {
		return nil, err
	}
	s := &Server{options: o, token: token, secret: []byte(secret), started: time.Now(), databases: newQuestionPool(at), streams: make(chan struct{}, mostStreams), database: database, confirmed: map[string]time.Time{}}
	for _, host := range o.Hosts {
		if host == "" || strings.ContainsAny(host, "/:@*, ") {
			return nil, &ratelimit.FieldError{Field: "hosts", Value: host, Want: "names of hosts without a scheme, a port and wildcards"}
		}
		s.hosts = append(s.hosts, strings.ToLower(strings.TrimSuffix(host, ".")))
	}
	s.collector = newCollector(at)
	return s, nil
}

// Close ends the streams and closes all connections.
func (s *Server) Close() {
	s.collector.close()
	s.databases.close()
}

// ServeHTTP serves the page, with its API below api/, at the path that is left of the request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	setSafeHeaders(w.Header())
	if refused := s.guard(r); refused != nil {
		refused.write(w)
		return
	}
	path := strings.TrimPrefix(r.URL.Path, "/")
	name, isAPI := strings.CutPrefix(path, "api/")
	switch {
	case isAPI:
		s.serveAPI(w, r, name)
	case path == "metrics" && r.Method != http.MethodPost:
		s.serveMetrics(w, r)
	case r.Method == http.MethodPost || !serveStatic(w, r, path):
		(&failure{http.StatusNotFound, "", "there is no such page"}).write(w)
	}
}

// API serves the questions and the actions alone, for an endpoint that has a guard of its own. The path of a
// request begins with the name of the question.
func (s *Server) API() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setSafeHeaders(w.Header())
		s.serveAPI(w, r, strings.TrimPrefix(r.URL.Path, "/"))
	})
}

// failure is the answer to a request that is refused or has failed.
type failure struct {
	status      int
	field, text string
}

func (f *failure) Error() string { return f.text }

func (f *failure) write(w http.ResponseWriter) {
	body := map[string]any{"error": f.text}
	if f.field != "" {
		body["field"] = f.field
	}
	writeJSON(w, f.status, body)
}

// failureOf is an error as an answer.
func failureOf(err error) *failure {
	var f *failure
	var wrong *ratelimit.FieldError
	var down *downError
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &wrong):
		return &failure{http.StatusBadRequest, strings.TrimPrefix(wrong.Field, "--"), strings.TrimPrefix(err.Error(), "--")}
	case errors.As(err, &down), errors.Is(err, context.DeadlineExceeded):
		return &failure{http.StatusServiceUnavailable, "", err.Error()}
	case errors.Is(err, admin.ErrNotFound):
		return &failure{http.StatusNotFound, "", err.Error()}
	}
	return &failure{http.StatusUnprocessableEntity, "", err.Error()}
}

// marshal is a value as JSON, in which API keys are hidden.
func marshal(value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		text = []byte(`{"error": "the answer is no JSON"}`) // values are numbers, texts, times and rows of JSON
	}
	return apiKeys.ReplaceAll(text, []byte(policy.KeyPrefix+"…"))
}

// apiKeys are API keys, and parts of them that are longer than the hints by which people know keys.
var apiKeys = regexp.MustCompile("(?i)" + regexp.QuoteMeta(policy.KeyPrefix) + `[0-9A-Za-z]{5,}`)

func writeJSON(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(marshal(value), '\n')) // an error means that the client has closed the connection
}
