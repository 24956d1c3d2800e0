package admin

import (
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/pgratelimit/pg-ratelimit/caddymodule"
)

func init() { caddy.RegisterModule(new(App)) }

// App opens the pages of a config when all handlers exist, if a guard precedes each of them. A page loads the
// app, so no config names it.
type App struct {
	limits  *caddymodule.App
	httpApp func() (any, error) // returns the app http, once all apps are provisioned
	pages   []*Page
}

// CaddyModule returns the Caddy module information.
func (*App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "pg_ratelimit_page", New: func() caddy.Module { return new(App) }}
}

// Provision sets up the app.
func (a *App) Provision(ctx caddy.Context) error {
	a.httpApp = func() (any, error) { return ctx.AppIfConfigured("http") }
	loaded, err := ctx.App("pg_ratelimit")
	if err == nil {
		a.limits = loaded.(*caddymodule.App)
	}
	return err
}

// Start opens the pages. It returns an error if a page has no guard in front of it.
func (a *App) Start() error {
	loaded, err := a.httpApp()
	if err != nil {
		return err
	}
	for _, server := range loaded.(*caddyhttp.App).Servers {
		guardRoutes(server.Routes, requiresCertificates(server), nil)
	}
	for _, p := range a.pages {
		if !p.insecure && !p.guarded {
			return errOpenPage
		}
	}
	for _, p := range a.pages {
		if err := p.open(a.limits); err != nil {
			return err
		}
	}
	return nil
}

// Stop does nothing: each page closes itself.
func (*App) Stop() error { return nil }

// Interface guards
var (
	_ caddy.App         = (*App)(nil)
	_ caddy.Provisioner = (*App)(nil)
)
