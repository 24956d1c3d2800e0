package deploy

import (
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	extauthz "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	matcher "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"
	"sigs.k8s.io/yaml"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// decider is the Caddy of decide/Caddyfile, which decides on requests for another proxy. Its limits are 3
// instead of 100.
type decider struct {
	*harness.Process
	address string
}

func startDecider(t *testing.T) decider {
	t.Helper()
	text := readFile(t, "decide/Caddyfile")
	address := harness.FreeAddress(t)
	config := replaceAll(t, text, "{\n\tservers {", "{\n\tadmin off\n\tservers {\n\t\tprotocols h1 h2c",
		"http://:9080 {",
		"http://:"+strings.TrimPrefix(address, "127.0.0.1:")+" {",
		"\t\t\trewrite {header.X-Forwarded-Uri}\n", "\t\t\trewrite {header.X-Forwarded-Uri}\n\t\t\trespond "+
			"/login \"{host} {method} {path} {query.user} {client_ip}\" 403\n",
		"limit 100 1m", "limit 3 1m\n\t\t\ttimeout 50s\n\t\t\ton_error deny")
	return decider{harness.RunCaddy(t, "", harness.Caddy(t, root), address, config,
		"DATABASE_URL="+cluster.Open(t)), address}
}

// checkDecides sends four requests of one client, with another forged address in their headers each time. The
// first three must pass, and the fourth must be refused. If behindProxy is set, send asks another proxy,
// which asks the Caddy. That proxy must refuse requests after the Caddy has stopped.
func (d decider) checkDecides(t *testing.T, behindProxy bool, send func(forged string) harness.Response) {
	t.Helper()
	for left := 2; left >= -1; left-- {
		response := send("192.0.2." + strconv.Itoa(left+2))
		if left >= 0 {
			if response.Status != http.StatusOK || behindProxy && response.Body != "app" {
				t.Fatalf("with %d left: %d %v %s, want 200 and the app", left, response.Status,
					response.Header, response.Body)
			}
			continue
		}
		check.Equal(t, "the status of the fourth request", response.Status, http.StatusTooManyRequests)
		check.Equal(t, "the remaining units", response.Header.Get("X-RateLimit-Remaining"), "0")
		if wait, _ := strconv.Atoi(response.Header.Get("Retry-After")); wait < 1 {
			t.Errorf("the fourth request: headers %v, want a Retry-After of 1 or more", response.Header)
		}
	}
	if !behindProxy {
		return
	}
	check.OK(t, d.Stop())
	check.Equal(t, "the status without the Caddy that decides", send("192.0.2.1").Status,
		http.StatusInternalServerError)
}

// A real nginx in front of an app asks the Caddy about each request, and forwards the headers of the limit.
func TestNginxAsksForDecisions(t *testing.T) {
	d, address := startDecider(t), harness.FreeAddress(t)
	harness.RunNginx(t, address, replaceAll(t, readFile(t, "decide/nginx.conf"), "127.0.0.1:9080", d.address,
		"127.0.0.1:9000", startUpstream(t), "listen 8080", "listen "+address))
	d.checkDecides(t, true, func(client string) harness.Response {
		response := harness.Ask(t, harness.Get("http://"+address+"/a/path?with=a+query", "X-Real-IP", client))
		if got := response.Header.Get("X-RateLimit-Limit"); response.Status == http.StatusOK && got != "3" {
			t.Errorf("a request that passed: X-RateLimit-Limit %q, want 3", got)
		}
		return response
	})
}

// A client can make its request look like a call of gRPC. It is refused with the status of any other request,
// because the programs that ask would take gRPC's 200 for a request that may pass.
func TestForgedCallsOfGRPCAreRefused(t *testing.T) {
	d := startDecider(t)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	defer client.CloseIdleConnections()
	for i, c := range []struct {
		path    string
		refused int
	}{{"/nginx/a", 403}, {"/envoy/a", 429}, {"/traefik", 429}, {"/take?key=k&cost=1", 429}} {
		for n := range 4 {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
				"http://"+d.address+c.path, nil)
			check.OK(t, err)
			r.Header = http.Header{"Te": {"trailers"}, "Content-Type": {"application/grpc+proto"},
				"X-Real-Ip": {"192.0.2." + strconv.Itoa(i)}, "X-Forwarded-Method": {http.MethodPost},
				"X-Forwarded-Uri": {"/pkg.Service/Call"}, "X-Forwarded-Host": {"shop.example"}}
			response, err := client.Do(r)
			check.OK(t, err)
			_ = response.Body.Close()
			want := http.StatusOK
			if n == 3 {
				want = c.refused
			}
			check.Equal(t, fmt.Sprint(c.path, ", request ", n+1), response.StatusCode, want)
		}
	}
}

// Envoy's API accepts the filter of decide/envoy.yaml. The Caddy decides on requests in the form that Envoy
// sends with this filter, and counts by the client's address.
func TestCaddyDecidesInEnvoysForm(t *testing.T) {
	object, err := yaml.YAMLToJSONStrict([]byte(readFile(t, "decide/envoy.yaml")))
	check.OK(t, err)
	var packed anypb.Any
	check.OK(t, protojson.Unmarshal(object, &packed))
	var filter extauthz.ExtAuthz
	check.OK(t, packed.UnmarshalTo(&filter))
	if err := filter.ValidateAll(); err != nil {
		t.Error(err)
	}
	service := filter.GetHttpService()
	if !strings.HasSuffix(service.ServerUri.Uri, ":9080") {
		t.Errorf("the filter asks %s, want the port 9080", service.ServerUri.Uri)
	}
	address := service.AuthorizationRequest.HeadersToAdd[0]
	check.Equal(t, "the header "+address.Key, address.Value, "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%")
	for _, name := range []string{"origin", "access-control-request-method"} { // of CORS preflights
		if !slices.ContainsFunc(filter.AllowedHeaders.GetPatterns(),
			func(p *matcher.StringMatcher) bool { return p.GetExact() == name }) {
			t.Errorf("the filter does not send the header %s, by which a policy knows preflights", name)
		}
	}
	d := startDecider(t)
	ask := func(client string) harness.Response {
		request := harness.Get("http://"+d.address+service.PathPrefix+"/a/path?with=a+query", address.Key,
			client)
		request.Host, request.Method = "shop.example", http.MethodPost
		return harness.Ask(t, request)
	}
	d.checkDecides(t, false, func(string) harness.Response { return ask("192.0.2.1") })
	check.Equal(t, "the status for another client", ask("192.0.2.2").Status, http.StatusOK)
}

// A real Traefik without plugins, in front of an app, asks the Caddy about each request. The rules of the
// Caddy see the host, method, path and query of the client's request.
func TestTraefikAsksForDecisions(t *testing.T) {
	program, err := harness.Traefik(t.Context(), filepath.Join(root, "integration"))
	check.OK(t, err)
	d, dir, address := startDecider(t), t.TempDir(), harness.FreeAddress(t)
	dynamic := replaceAll(t, readFile(t, "decide/traefik.yaml"), "127.0.0.1:9080", d.address,
		"127.0.0.1:9000", startUpstream(t))
	tr := harness.Start(t, harness.Program{Name: "traefik", Path: program, Dir: dir, Args: []string{
		"--entryPoints.web.address=" + address, "--providers.file.filename=" +
			writeFile(t, filepath.Join(dir, "dynamic.yml"), dynamic)}})
	tr.AwaitAddress(t, address)
	url := "http://" + address
	// The Caddy charges no request to /login, and responds with what its rules see.
	login := harness.Get(url+"/login?user=ann", "X-Real-IP", "192.0.2.9", "X-Forwarded-Uri", "/other")
	login.Host, login.Method = "shop.example", http.MethodPost
	tr.Await(t, "its router", func() bool { return harness.Ask(t, login).Status != http.StatusNotFound })
	response := harness.Ask(t, login)
	check.Equal(t, "the response to /login", fmt.Sprint(response.Status, " ", response.Body),
		"403 shop.example POST /login ann 127.0.0.1")
	d.checkDecides(t, true, func(client string) harness.Response {
		return harness.Ask(t, harness.Get(url+"/a/path", "X-Real-IP", client, "X-Forwarded-For", client))
	})
}

// The commands of docs/programs.md with /take charge units, and are refused when no units are left.
// Each key has its own units.
func TestProgramsTakeUnitsOfTheirKey(t *testing.T) {
	page := readFile(t, filepath.Join(root, "docs", "programs.md"))
	d := startDecider(t)
	lines := regexp.MustCompile(`(?m)^\$ (.*/take.*)$`).FindAllStringSubmatch(page, -1)
	if len(lines) != 3 {
		t.Fatalf("the page has %d lines with /take, want 3", len(lines))
	}
	for i, line := range lines {
		// Each line takes the three units of its key, so a second run is refused.
		command := replaceAll(t, line[1], "127.0.0.1:9080", d.address, "key=report",
			"key=report"+strconv.Itoa(i))
		for _, want := range []string{"200 0", "429 0"} {
			out, err := exec.Command("sh", "-c", command).CombinedOutput()
			if err != nil || strings.Join(strings.Fields(string(out)), " ") != want {
				t.Errorf("%s\nprints %q, %v; want %s", command, out, err, want)
			}
		}
	}
	response := harness.Ask(t, harness.Get("http://"+d.address+"/take?key=other"))
	if response.Status != http.StatusOK || response.Header.Get("X-RateLimit-Remaining") != "2" {
		t.Errorf("one unit of another key: %d %v, want 200 with 2 left", response.Status, response.Header)
	}
}
