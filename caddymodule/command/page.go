package command

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	webpage "github.com/pgratelimit/pg-ratelimit/internal/plane/page"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// pageShutdown is for requests that are under way when the page ends.
const pageShutdown = time.Second

func pageCommand(t *tool) *cobra.Command {
	var o webpage.Options
	listen, insecure := "", false
	cmd := &cobra.Command{
		Use:   "page [--listen 127.0.0.1:2020] [--write]",
		Short: "Serves a page that shows what all proxies do, and why a request was refused",
		Long: `Serves a page that shows what all proxies on the database do, who is refused, and why. It reads the database only, so
it also shows Traefik. Its API is below /api/, and /metrics has the numbers of all proxies for Prometheus.

The page has no login. So it listens on this machine only, unless --insecure is given: from another machine, use ssh -L,
or the handler pg_ratelimit_page in a Caddyfile behind an authentication.`,
		Example: `  caddy pg-ratelimit page
  caddy pg-ratelimit page --listen 127.0.0.1:2021 --write`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			at, err := t.databases()
			if err != nil {
				return withoutKeys(err)
			}
			o.DSN, o.Policy, o.History = at[ofCounters], at[ofPolicy], at[ofHistory]
			if err := checkListen(listen, insecure); err != nil {
				return err
			}
			o.Version = edge.Version
			return servePage(cmd, listen, o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&listen, "listen", "127.0.0.1:2020", "address and port")
	flags.BoolVar(&o.Write, "write", false, "let people pause, ban, lift bans, and give more")
	flags.StringSliceVar(&o.Hosts, "host", nil, "further names under which the page is reached")
	flags.BoolVar(&insecure, "insecure", false, "listen on other addresses than those of this machine, for everybody")
	return cmd
}

// checkListen refuses an address that others can reach.
func checkListen(listen string, insecure bool) error {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return &ratelimit.FieldError{Field: "--listen", Value: listen, Want: "an address and a port, such as 127.0.0.1:2020"}
	}
	address, err := netip.ParseAddr(host)
	if insecure || host == "localhost" || err == nil && address.IsLoopback() {
		return nil
	}
	return &ratelimit.FieldError{Field: "--listen", Value: listen, Want: "an address of this machine alone, such as 127.0.0.1:2020, or used with --insecure: the page has no login"}
}

// servePage serves the page until a signal ends it.
func servePage(cmd *cobra.Command, listen string, o webpage.Options) error {
	s, err := webpage.New(o)
	if err != nil {
		return err
	}
	defer s.Close()
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return &ratelimit.FieldError{Field: "--listen", Value: listen, Want: "a free port: " + err.Error()}
	}
	parent := cmd.Context()
	if parent == nil {
		parent = context.Background()
	}
	ctx, stop := signal.NotifyContext(parent, os.Interrupt, syscall.SIGTERM)
	defer stop()
	server := &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	context.AfterFunc(ctx, func() {
		s.Close() // ends the streams
		within, cancel := context.WithTimeout(context.Background(), pageShutdown)
		defer cancel()
		if server.Shutdown(within) != nil {
			_ = server.Close() // requests that are still under way end with the process
		}
	})
	fmt.Fprintf(cmd.OutOrStdout(), "The page is at http://%s/ (Ctrl-C ends it)\n", listener.Addr())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
