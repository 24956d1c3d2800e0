package page

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"
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
	// Renew returns Options with the DSNs for new connections, which may have changed. Nil means those above.
	Renew func() (Options, error)
	// Hosts are the names under which the page is reached, besides addresses and localhost.
	Hosts []string
	// Version is that of the program.
	Version string
}

// Server serves the page and its API.
type Server struct {
	options   Options
	hosts     []string
	database  string
	started   time.Time
	pools     *pools
	asking    chan struct{} // one for each request that asks the database
	collector *collector
	requests  requestSums
}

// New returns a server. It does not touch the network before a request.
func New(o Options) (*Server, error) {
	at := o.dsns()
	database, err := at.text()
	if err != nil {
		return nil, err
	}
	s := &Server{options: o, started: time.Now(), asking: make(chan struct{}, mostAsking), database: database, requests: requestSums{past: map[[2]string]int64{}}}
	for _, host := range o.Hosts {
		if host == "" || strings.ContainsAny(host, "/:@*, ") {
			return nil, &ratelimit.FieldError{Field: "hosts", Value: host, Want: "names of hosts without a scheme, a port and wildcards"}
		}
		s.hosts = append(s.hosts, strings.ToLower(strings.TrimSuffix(host, ".")))
	}
	if s.pools, err = newPools(&s.options); err != nil {
		return nil, err
	}
	s.collector = newCollector(s.pools)
	return s, nil
}

// Close closes all connections.
func (s *Server) Close() {
	s.collector.close()
	s.pools.close()
}

// ServeHTTP serves the page, with its API below api/, at the path that is left of the request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	setSafeHeaders(w.Header())
	if !s.knowsHost(r) {
		errHost.write(w)
		return
	}
	file := strings.TrimPrefix(r.URL.Path, "/")
	name, isAPI := strings.CutPrefix(file, "api/")
	switch {
	case isAPI:
		s.serveAPI(w, r, name)
	case file == "" && r.Method == http.MethodPost:
		s.serveIndex(w, r)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		(&failure{http.StatusMethodNotAllowed, "", "the method must be GET"}).write(w)
	case file == "metrics":
		s.serveMetrics(w, r)
	case file == "" || file == "index.html":
		s.serveIndex(w, r)
	case !serveStatic(w, file):
		(&failure{http.StatusNotFound, "", "there is no such page"}).write(w)
	}
}

//go:embed static
var static embed.FS

// types are the files that the page loads, by the end of their names.
var types = map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}

// serveStatic serves a file of the page. It reports false if there is none.
func serveStatic(w http.ResponseWriter, name string) bool {
	text, err := static.ReadFile("static/" + name)
	kind := types[path.Ext(name)]
	if err != nil || kind == "" {
		return false
	}
	w.Header().Set("Content-Type", kind)
	_, _ = w.Write(text) // an error means that the client has closed the connection
	return true
}

// policyOfContent lets the page load only what it serves itself.
const policyOfContent = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; " +
	"base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

// setSafeHeaders sets the headers of every answer.
func setSafeHeaders(h http.Header) {
	h.Set("Content-Security-Policy", policyOfContent)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// errHost is the answer to a request for a host that the page does not know.
var errHost = &failure{http.StatusMisdirectedRequest, "host",
	"the page is not for this host name: use the address that it listens on, or name the host in its settings (`hosts`, or --host of the command)"}

// knowsHost reports whether the host of a request is one of the page. Any other name could be made to lead to this
// machine, and a proxy that makes certificates on demand has one for it. An address cannot.
func (s *Server) knowsHost(r *http.Request) bool {
	name, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		name = r.Host
	}
	name = strings.ToLower(strings.TrimSuffix(strings.Trim(name, "[]"), "."))
	if _, err := netip.ParseAddr(name); err == nil || name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return true
	}
	return slices.Contains(s.hosts, name)
}

// failure is the answer to a request that is refused or has failed.
type failure struct {
	status      int
	field, text string
}

func (f *failure) Error() string { return f.text }

func (f *failure) write(w http.ResponseWriter) {
	body := map[string]any{"error": oneLine(f.text)}
	if f.field != "" {
		body["field"] = f.field
	}
	writeJSON(w, f.status, body)
}

// failureOf is an error as an answer.
func failureOf(err error) *failure {
	var f *failure
	var wrong *ratelimit.FieldError
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &wrong):
		return &failure{http.StatusBadRequest, strings.TrimPrefix(wrong.Field, "--"), strings.TrimPrefix(err.Error(), "--")}
	case failureIsDown(err):
		return &failure{http.StatusServiceUnavailable, "", err.Error()}
	case errors.Is(err, admin.ErrNotFound):
		return &failure{http.StatusNotFound, "", err.Error()}
	}
	return &failure{http.StatusUnprocessableEntity, "", err.Error()}
}

// failureIsDown reports whether the database does not answer.
func failureIsDown(err error) bool {
	var down *downError
	return errors.As(err, &down) || errors.Is(err, context.DeadlineExceeded)
}

// marshal is a value as JSON, in which API keys are hidden.
func marshal(value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		text = []byte(`{"error": "the answer is no JSON"}`) // values are numbers, texts, times and rows of JSON
	}
	return apiKeys.ReplaceAll(text, []byte(policy.KeyPrefix+"..."))
}

// apiKeys are API keys, and parts of them that are longer than the hints by which people know keys.
var apiKeys = regexp.MustCompile("(?i)" + regexp.QuoteMeta(policy.KeyPrefix) + `[0-9A-Za-z]{5,}`)

func writeJSON(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(marshal(value), '\n')) // an error means that the client has closed the connection
}
