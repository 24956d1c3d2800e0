package caddymodule

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

	"github.com/pgratelimit/pg-ratelimit/internal/plane/page"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

func init() {
	caddy.RegisterModule(new(Page))
	httpcaddyfile.RegisterHandlerDirective("pg_ratelimit_page", parsePage)
	httpcaddyfile.RegisterDirectiveOrder("pg_ratelimit_page", httpcaddyfile.Before, "reverse_proxy")
}

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
	loaded, err := ctx.App("pg_ratelimit")
	if err != nil {
		return err
	}
	app := loaded.(*App)
	app.pages = append(app.pages, p) // the app checks their guards when it starts
	var read settings.Settings
	if err := settings.Read(settings.PageTable, values(p), &read); err != nil {
		return err
	}
	p.insecure, p.hosts, p.dsn = read.Insecure, strings.Fields(string(p.Hosts)), cmp.Or(p.DSN, app.DSN)
	options, err := p.options(pageSources{})
	if err == nil {
		_, err = page.New(options) // validates the options; serve creates the page once all handlers exist
	}
	return err
}

// serve starts the page, with the databases of the config's handlers.
func (p *Page) serve(a *App) error {
	dsn, err := databaseDSN("dsn", p.dsn)
	if err != nil {
		return err
	}
	sources := a.pageSources[dsn]
	options, err := p.options(sources)
	if err != nil {
		return err
	}
	options.Renew = func() (page.Options, error) { return p.options(sources) }
	server, err := page.New(options)
	if err == nil {
		p.server.Store(server)
	}
	return err
}

// options returns the settings of the page, with the current DSNs. The DSNs of the policy and the history
// come from the page's settings, and from defaults if these settings are "".
func (p *Page) options(defaults pageSources) (o page.Options, err error) {
	o = page.Options{Hosts: p.hosts, Version: version()}
	if o.DSN, err = databaseDSN("dsn", p.dsn); err != nil {
		return o, err
	}
	if p.Policy != "" {
		o.Policy, err = databaseDSN("policy", p.Policy)
	} else {
		o.Policy, err = defaults.policy.Current()
	}
	if err != nil {
		return o, err
	}
	if p.History != "" {
		o.History, err = databaseDSN("history", p.History)
	} else {
		o.History, err = defaults.history.Current()
	}
	return o, err
}

// pageSources holds the databases of the policy and the history that belong to a database of counters. The
// DSN is "" without a policy or a history.
type pageSources struct{ policy, history host.DataSource }

// addPageSources adds the databases of a handler's policy and history, under the DSN of its counters. Of
// several handlers, the first handler with a policy determines the page's policy, and the first handler with
// a history determines its history.
func (a *App) addPageSources(sources *host.DataSources) {
	dsn := sources.Limits.DSN
	if dsn == settings.MemoryDSN {
		return
	}
	if a.pageSources == nil {
		a.pageSources = map[string]pageSources{}
	}
	d := a.pageSources[dsn]
	if sources.Policy != nil && d.policy.DSN == "" {
		d.policy = *sources.Policy
	}
	if sources.History != nil && d.history.DSN == "" {
		d.history = *sources.History
	}
	a.pageSources[dsn] = d
}

// databaseDSN returns the DSN in a field of the page. The DSN memory is an error.
func databaseDSN(field string, configured Text) (string, error) {
	dsn, shown, err := expandDSN(string(configured))
	var s settings.Store
	if err == nil {
		s, err = settings.Store{DSN: dsn}.Resolve("here, in the global option pg_ratelimit,")
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
	d.Next() // the directive's name
	b := newBlock(d)
	if args := d.RemainingArgs(); len(args) > 0 {
		return b.invalid("pg_ratelimit_page", strings.Join(args, " "), "a block, or nothing")
	}
	return b.readAll(p, settings.PageTable)
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Page)(nil)
	_ caddy.CleanerUpper          = (*Page)(nil)
	_ caddyhttp.MiddlewareHandler = (*Page)(nil)
	_ caddyfile.Unmarshaler       = (*Page)(nil)
)
