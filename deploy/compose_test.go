package deploy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
)

// modulePath is the path of the Go module, which is the name of the plugin in Traefik.
const modulePath = "github.com/pgratelimit/pg-ratelimit"

// loadCompose reads a Compose file as docker compose does.
func loadCompose(t *testing.T, path string, env ...string) (*types.Project, error) {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{path}, cli.WithEnv(env), cli.WithResolvedPaths(true))
	if err != nil {
		t.Fatal(err)
	}
	return options.LoadProject(t.Context())
}

// compose returns a Compose file with a password.
func compose(t *testing.T, path string) *types.Project {
	t.Helper()
	project, err := loadCompose(t, path, "POSTGRES_PASSWORD=of the test")
	if err != nil {
		t.Fatal(err)
	}
	return project
}

// composeFiles maps each Compose file to its service that limits requests.
var composeFiles = map[string]string{"caddy/compose.yaml": "caddy", "traefik/compose.yaml": "traefik"}

// Without POSTGRES_PASSWORD, a Compose file is an error, so that no server has a known password.
func TestComposeFilesNeedAPassword(t *testing.T) {
	for path := range composeFiles {
		if _, err := loadCompose(t, path); !strings.Contains(fmt.Sprint(err), "POSTGRES_PASSWORD") {
			t.Errorf("%s without a password: error %v, want one that names POSTGRES_PASSWORD", path, err)
		}
	}
}

// In each Compose file, the proxy's DSN has the host, user, database and password of the Postgres. The proxy
// starts when Postgres is healthy, the data of Postgres is in a volume, and only the proxy publishes ports.
func TestComposeFilesFitTogether(t *testing.T) {
	for path, proxy := range composeFiles {
		t.Run(path, func(t *testing.T) {
			p := compose(t, path)
			service, database := p.Services[proxy], p.Services["postgres"]
			dsn, err := pgx.ParseConfig(*service.Environment["DATABASE_URL"])
			if err != nil {
				t.Fatal(err)
			}
			env := database.Environment
			check.Equal(t, "the DSN's host", dsn.Host, "postgres")
			check.Equal(t, "the DSN's user", dsn.User, *env["POSTGRES_USER"])
			check.Equal(t, "the DSN's database", dsn.Database, *env["POSTGRES_DB"])
			check.Equal(t, "PGPASSWORD", *service.Environment["PGPASSWORD"], *env["POSTGRES_PASSWORD"])
			check.Equal(t, "the condition of the proxy's start", service.DependsOn["postgres"].Condition,
				types.ServiceConditionHealthy)
			check.Equal(t, "the server has a health check", database.HealthCheck != nil, true)
			check.Equal(t, "the server's image", database.Image, "postgres:18")
			var folders []string
			for _, v := range database.Volumes {
				folders = append(folders, v.Target)
			}
			// From 18 on, the image keeps its data in a folder of the version below this one.
			check.Equal(t, "the folders of the volumes", folders, "[/var/lib/postgresql]")
			for name, s := range p.Services {
				if name != proxy && len(s.Ports) > 0 {
					t.Errorf("%s publishes %+v, want ports of the proxy only", name, s.Ports)
				}
			}
		})
	}
}

// The Compose file builds and runs the image of deploy/Dockerfile. It mounts the Caddyfile and the volumes
// where the image expects them, and publishes only ports on which Caddy listens.
func TestComposeFileRunsImageOfCaddy(t *testing.T) {
	p, i := compose(t, "caddy/compose.yaml"), ourImage(t)
	s := p.Services["caddy"]
	check.Equal(t, "the build's context", s.Build.Context, repository(t))
	check.Equal(t, "the build's Dockerfile", s.Build.Dockerfile, "deploy/Dockerfile")
	check.Equal(t, "the image", s.Image, "pg-ratelimit-caddy:"+tag)
	if len(s.Configs) != 1 || !slices.Contains(i.command, s.Configs[0].Target) {
		t.Errorf("the Caddyfile is at %+v, want where the image reads it: %q", s.Configs, i.command)
	}
	for _, volume := range s.Volumes {
		if volume.Target != i.env["XDG_DATA_HOME"] && volume.Target != i.env["XDG_CONFIG_HOME"] {
			t.Errorf("a volume is at %s, want one of Caddy's folders", volume.Target)
		}
	}
	check.Equal(t, "the number of volumes beside the read-only file system", len(s.Volumes), 2)
	caddyfile := p.Configs["caddyfile"].Content
	for _, published := range s.Ports {
		port := strconv.Itoa(int(published.Target))
		if !slices.Contains(i.ports, port) || !strings.Contains(caddyfile, "_port "+port) {
			t.Errorf("the service publishes the port %s of the container, want one on which Caddy listens",
				port)
		}
	}
}

// The Compose file runs the Traefik that the tests run, and mounts this repository read-only where Traefik
// searches for the plugin.
func TestComposeFileGivesTraefikPlugin(t *testing.T) {
	s := compose(t, "traefik/compose.yaml").Services["traefik"]
	check.Equal(t, "the image", s.Image, "traefik:"+traefikVersion(t))
	folder := s.WorkingDir + "plugins-local/src/" + modulePath // where Traefik searches for the plugin
	i := slices.IndexFunc(s.Volumes, func(v types.ServiceVolumeConfig) bool { return v.Target == folder })
	if i < 0 {
		t.Fatalf("the volumes are %+v, want one at %s", s.Volumes, folder)
	}
	check.Equal(t, "the plugin's folder", s.Volumes[i].Source, repository(t))
	check.Equal(t, "the plugin's volume is read-only", s.Volumes[i].ReadOnly, true)
	if !slices.Contains(s.Command, "--entryPoints.web.address=:"+strconv.Itoa(int(s.Ports[0].Target))) {
		t.Errorf("the arguments of Traefik are %q, want the entry point web at %+v", s.Command, s.Ports)
	}
}
