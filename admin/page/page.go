package page

import (
	"cmp"
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
	"sync"

	"golang.org/x/sync/singleflight"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Options are the settings of a Server.
type Options struct {
	// DSN, Policy and History locate the databases of the counters, the policy and the history. "" for Policy
	// or History means DSN.
	DSN, Policy, History string
	// Renew, if not nil, is called before each new connection and returns the settings with the current DSNs,
	// so that a changed password takes effect.
	Renew func() (Options, error)
	// Hosts are the host names of the page, besides addresses and localhost.
	Hosts []string
	// Version is the version of the program.
	Version string
}

// Server serves the page and its API.
type Server struct {
	options       Options
	hosts         []string
	database      string
	pools         *pools
	answers       sync.Map           // the latest answer to each question, by name
	running       singleflight.Group // the statements of questions
	senderQueries chan struct{}      // a semaphore: holds a value for each running query about a sender
	closing       context.Context
	cancel        context.CancelFunc
	requests      requestSums
}

// New returns a Server, which connects to the databases at the first request.
func New(o Options) (*Server, error) {
	s := &Server{
		options: o, senderQueries: make(chan struct{}, maxSenderQueries),
		requests: requestSums{finalSums: map[[2]string]int64{}},
	}
	for _, host := range o.Hosts {
		if host == "" || strings.ContainsAny(host, "/:@*, ") {
			return nil, &ratelimit.FieldError{Field: "hosts", Value: host,
				Want: "names of hosts without a scheme, a port and wildcards"}
		}
		s.hosts = append(s.hosts, strings.ToLower(strings.TrimSuffix(host, ".")))
	}
	var err error
	if s.pools, s.database, err = newPools(&s.options); err != nil {
		return nil, err
	}
	s.closing, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// Close closes all connections.
func (s *Server) Close() {
	s.cancel()
	s.pools.close()
}

// ServeHTTP serves the page, its API below api/, and metrics. The caller strips any prefix of the path.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	setSecurityHeaders(w.Header())
	if !s.isOwnHost(r) {
		misdirected.write(w)
		return
	}
	file := strings.TrimPrefix(r.URL.Path, "/")
	name, isAPI := strings.CutPrefix(file, "api/")
	switch {
	case r.Header.Get("Sec-Fetch-Site") == "cross-site" &&
		(isAPI || r.Header.Get("Sec-Fetch-Mode") != "navigate"): // a link may lead here
		(&failure{http.StatusForbidden, "", "another site asks: open the page itself"}).write(w)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		(&failure{http.StatusMethodNotAllowed, "", "the method must be GET"}).write(w)
	case strings.Contains(r.URL.RawQuery, "%00"):
		(&failure{http.StatusBadRequest, "",
			"the URL has a NUL (%00), which no name and no key may contain"}).write(w)
	case isAPI:
		s.serveAPI(w, r, name)
	case file == "metrics":
		s.serveMetrics(w, r)
	case !serveStatic(w, cmp.Or(file, "index.html")):
		(&failure{http.StatusNotFound, "", "there is no such page"}).write(w)
	}
}

//go:embed static
var static embed.FS

// contentTypes has the content types of the page's files by extension. Other files are not served.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
	".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// serveStatic serves a file of the page, and reports whether the file exists.
func serveStatic(w http.ResponseWriter, name string) bool {
	data, err := static.ReadFile("static/" + name)
	contentType := contentTypes[path.Ext(name)]
	if err != nil || contentType == "" {
		return false
	}
	w.Header().Set("Content-Type", contentType)
	_, _ = w.Write(data) // an error means that the client has closed the connection
	return true
}

// contentSecurityPolicy allows the page to load only files of this server.
const contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; " +
	"img-src 'self' data:; connect-src 'self'; font-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// setSecurityHeaders sets the security headers of every response.
func setSecurityHeaders(h http.Header) {
	h.Set("Content-Security-Policy", contentSecurityPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// misdirected is the response to a request for a host that isOwnHost refuses.
var misdirected = &failure{http.StatusMisdirectedRequest, "host",
	"the page is not for this host name: use the address that it listens on, or name the host in its " +
		"settings (`hosts`, or --host of the command)"}

// isOwnHost reports whether the host of a request is an address, localhost or one of Options.Hosts. The page
// refuses all other names: an attacker can point a name to this machine, so that a script of the attacker
// reads the page in the browser of an operator (DNS rebinding). A proxy with certificates on demand would
// even get a certificate for that name.
func (s *Server) isOwnHost(r *http.Request) bool {
	name, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		name = r.Host
	}
	name = strings.ToLower(strings.TrimSuffix(strings.Trim(name, "[]"), "."))
	_, err = netip.ParseAddr(name)
	return err == nil || name == "localhost" || strings.HasSuffix(name, ".localhost") ||
		slices.Contains(s.hosts, name)
}

// failure is an error with its HTTP status. field names the invalid parameter, or is "".
type failure struct {
	status      int
	field, text string
}

func (f *failure) Error() string { return f.text }

func (f *failure) write(w http.ResponseWriter) {
	body := map[string]string{"error": strings.Join(strings.Fields(f.text), " ")}
	if f.field != "" {
		body["field"] = f.field
	}
	data, _ := json.Marshal(body) // never fails for strings
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(f.status)
	_, _ = w.Write(hideKeys(data)) // an error means that the client has closed the connection
}

// newFailure returns the response for an error.
func newFailure(err error) *failure {
	if f, ok := errorAs[*failure](err); ok {
		return f
	}
	if fieldErr, ok := errorAs[*ratelimit.FieldError](err); ok {
		return &failure{http.StatusBadRequest, fieldErr.Field, err.Error()}
	}
	// SQLSTATE class 22 is invalid data. Only the query parameter "at" is parsed by SQL, so it is the cause.
	if pgErr, ok := pgError(err); ok && strings.HasPrefix(pgErr.Code, "22") {
		return &failure{http.StatusBadRequest, "at", pgErr.Message}
	} else if ok {
		return &failure{http.StatusUnprocessableEntity, "", err.Error()}
	}
	return &failure{http.StatusServiceUnavailable, "", err.Error()}
}

// errorAs returns the first error of a type in the tree of err, as errors.As does.
func errorAs[E error](err error) (target E, ok bool) {
	ok = errors.As(err, &target)
	return target, ok
}

// apiKeys matches API keys, and beginnings of API keys that are longer than the hint that lists show.
var apiKeys = regexp.MustCompile("(?i)" + regexp.QuoteMeta(policy.KeyPrefix) + `[0-9A-Za-z]{5,}`)

// hideKeys replaces API keys in a response body with their prefix.
func hideKeys(body []byte) []byte { return apiKeys.ReplaceAll(body, []byte(policy.KeyPrefix+"...")) }
