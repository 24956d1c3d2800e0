package admin

import (
	"cmp"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/pgratelimit/pg-ratelimit/admin/page"
	"github.com/pgratelimit/pg-ratelimit/caddymodule"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

func init() {
	caddy.RegisterModule(new(Page))
	httpcaddyfile.RegisterHandlerDirective("pg_ratelimit_page", parsePage)
	httpcaddyfile.RegisterDirectiveOrder("pg_ratelimit_page", httpcaddyfile.Before, "reverse_proxy")
}

// Text is the value of a setting.
type Text = caddymodule.Text

// Page serves a page that shows what all proxies on a database do, who is refused, and why. It only reads the
// database, so it also shows Traefik.
//
// An authentication or a network matcher (`remote_ip`, `client_ip`) must precede the page. Otherwise Caddy
// does not load the configuration, unless `insecure` is on.
type Page struct {
	PageSettings

	insecure bool     // see PageSettings
	hosts    []string // the host names of the page, besides addresses and localhost
	dsn      Text     // the DSN of the counters, as configured
	guarded  bool     // an authentication or a network matcher precedes the page

	server atomic.Pointer[page.Server] // nil until the config has started
}

// CaddyModule returns the Caddy module information.
func (*Page) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.pg_ratelimit_page",
		New: func() caddy.Module { return new(Page) }}
}

// Provision sets up the handler.
func (p *Page) Provision(ctx caddy.Context) error {
	loaded, err := ctx.App("pg_ratelimit_page")
	if err != nil {
		return err
	}
	app := loaded.(*App)
	app.pages = append(app.pages, p)
	var read settings.Settings
	if err := settings.Read(settings.PageTable, caddymodule.Values(p), &read); err != nil {
		return err
	}
	p.insecure, p.hosts, p.dsn = read.Insecure, strings.Fields(string(p.Hosts)), cmp.Or(p.DSN, app.limits.DSN)
	options, err := p.options(host.DataSource{}, host.DataSource{})
	if err == nil {
		_, err = page.New(options) // validates the options; open creates the page once all handlers exist
	}
	return err
}

// open creates the page, with the databases of the config's handlers.
func (p *Page) open(limits *caddymodule.App) error {
	dsn, err := databaseDSN("dsn", p.dsn)
	if err != nil {
		return err
	}
	policy, history := limits.Databases(dsn)
	options, err := p.options(policy, history)
	if err != nil {
		return err
	}
	options.Renew = func() (page.Options, error) { return p.options(policy, history) }
	server, err := page.New(options)
	if err == nil {
		p.server.Store(server)
	}
	return err
}

// options returns the settings of the page, with the current DSNs. The DSNs of the policy and the history
// come from the page's settings, and from the arguments if these settings are "".
func (p *Page) options(policy, history host.DataSource) (o page.Options, err error) {
	o = page.Options{Hosts: p.hosts, Version: caddymodule.Version()}
	if o.DSN, err = databaseDSN("dsn", p.dsn); err != nil {
		return o, err
	}
	if p.Policy != "" {
		o.Policy, err = databaseDSN("policy", p.Policy)
	} else {
		o.Policy, err = policy.Current()
	}
	if err != nil {
		return o, err
	}
	if p.History != "" {
		o.History, err = databaseDSN("history", p.History)
	} else {
		o.History, err = history.Current()
	}
	return o, err
}

// databaseDSN returns the DSN in a field of the page. The DSN memory is an error.
func databaseDSN(field string, configured Text) (string, error) {
	dsn, shown, err := caddymodule.ExpandDSN(string(configured))
	var s settings.Connection
	if err == nil {
		s, err = settings.Connection{DSN: dsn}.Resolve("here, in the global option pg_ratelimit,")
	}
	if err == nil && s.DSN == settings.MemoryDSN {
		err = &ratelimit.FieldError{Field: "dsn", Value: shown,
			Want: "a Postgres URL or key=value pairs: counters in memory are only in the proxy"}
	}
	var wrong *ratelimit.FieldError
	if errors.As(err, &wrong) && wrong.Field == "dsn" {
		err = &ratelimit.FieldError{Field: field, Value: wrong.Value, Want: wrong.Want}
	}
	return s.DSN, err
}

// Cleanup closes the server of the page.
func (p *Page) Cleanup() error {
	if server := p.server.Load(); server != nil {
		server.Close()
	}
	return nil
}

// ServeHTTP serves the page. Its links are relative, so its own path must end with a slash.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	server := p.server.Load()
	if server == nil {
		return caddyhttp.Error(http.StatusServiceUnavailable, errOpenPage)
	}
	original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request)
	if ok && strings.Trim(r.URL.Path, "/") == "" && !strings.HasSuffix(original.URL.Path, "/") &&
		!strings.HasPrefix(original.URL.Path, "//") {
		http.Redirect(w, r, original.URL.Path+"/", http.StatusPermanentRedirect)
		return nil
	}
	server.ServeHTTP(w, r)
	return nil
}

func parsePage(helper httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	p := new(Page)
	if err := p.UnmarshalCaddyfile(helper.Dispenser); err != nil {
		return nil, err
	}
	return p, nil
}

// UnmarshalCaddyfile reads the directive. Its syntax is in docs/page.md.
func (p *Page) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	return caddymodule.ReadDirective(d, p, settings.PageTable)
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Page)(nil)
	_ caddy.CleanerUpper          = (*Page)(nil)
	_ caddyhttp.MiddlewareHandler = (*Page)(nil)
	_ caddyfile.Unmarshaler       = (*Page)(nil)
)
