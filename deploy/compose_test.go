package deploy

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/jackc/pgx/v5"
)

// modulePath is the path of the Go module, which Traefik calls the plugin's.
const modulePath = "github.com/pgratelimit/pg-ratelimit"

// compose returns a Compose file, as docker compose reads it.
func compose(t *testing.T, path string) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{path},
		cli.WithEnv([]string{"POSTGRES_PASSWORD=of the test"}), cli.WithResolvedPaths(true))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return project
}

// composeFiles are the files, and the service of each that limits.
var composeFiles = map[string]string{"caddy/compose.yaml": "caddy", "traefik/compose.yaml": "traefik"}

func TestComposeFilesNeedAPassword(t *testing.T) {
	for path := range composeFiles {
		options, err := cli.NewProjectOptions([]string{path}, cli.WithEnv(nil))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := options.LoadProject(t.Context()); err == nil ||
			!strings.Contains(err.Error(), "POSTGRES_PASSWORD") {
			t.Errorf("%s without a password: %v", path, err)
		}
	}
}

// TestComposeFilesFitTogether compares what the services say of each other.
func TestComposeFilesFitTogether(t *testing.T) {
	for path, proxy := range composeFiles {
		t.Run(path, func(t *testing.T) {
			p := compose(t, path)
			service, database := p.Services[proxy], p.Services["postgres"]
			dsn, err := pgx.ParseConfig(*service.Environment["DATABASE_URL"])
			if err != nil {
				t.Fatal(err)
			}
			if dsn.Host != "postgres" || dsn.User != *database.Environment["POSTGRES_USER"] ||
				dsn.Database != *database.Environment["POSTGRES_DB"] ||
				*service.Environment["PGPASSWORD"] != *database.Environment["POSTGRES_PASSWORD"] {
				t.Errorf("the DSN is %s, and the environment of the server %v",
					*service.Environment["DATABASE_URL"], database.Environment)
			}
			if service.DependsOn["postgres"].Condition != types.ServiceConditionHealthy ||
				database.HealthCheck == nil {
				t.Errorf("the proxy does not wait for the server: %v", service.DependsOn)
			}
			// From 18 on, the image keeps its data in a folder of the version below this one.
			if database.Image != "postgres:18" || len(database.Volumes) != 1 ||
				database.Volumes[0].Target != "/var/lib/postgresql" {
				t.Errorf("the server is %s, with the volumes %+v", database.Image, database.Volumes)
			}
			for name, s := range p.Services {
				if name != proxy && len(s.Ports) > 0 {
					t.Errorf("clients reach %s without the proxy, at %+v", name, s.Ports)
				}
			}
		})
	}
}

func TestTheComposeFileRunsTheImageOfCaddy(t *testing.T) {
	p, i := compose(t, "caddy/compose.yaml"), ourImage(t)
	s := p.Services["caddy"]
	context, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	if s.Build.Context != context || s.Build.Dockerfile != "deploy/Dockerfile" ||
		s.Image != "pg-ratelimit-caddy:"+tag {
		t.Errorf("it builds %s from %s in %s", s.Image, s.Build.Dockerfile, s.Build.Context)
	}
	if len(s.Configs) != 1 || !slices.Contains(i.command, s.Configs[0].Target) {
		t.Errorf("the Caddyfile is at %+v, and the image runs %q", s.Configs, i.command)
	}
	for _, volume := range s.Volumes {
		if volume.Target != i.env["XDG_DATA_HOME"] && volume.Target != i.env["XDG_CONFIG_HOME"] {
			t.Errorf("Caddy keeps nothing in %s", volume.Target)
		}
	}
	if len(s.Volumes) != 2 {
		t.Errorf("with a file system that is read-only, Caddy needs two volumes: %+v", s.Volumes)
	}
	for _, port := range s.Ports {
		if !slices.Contains(i.ports, strconv.Itoa(int(port.Target))) ||
			!strings.Contains(caddyfileOfCompose(t), "_port "+strconv.Itoa(int(port.Target))) {
			t.Errorf("nothing listens on the port %d of the container", port.Target)
		}
	}
}

func TestTheComposeFileGivesTraefikThePlugin(t *testing.T) {
	s := compose(t, "traefik/compose.yaml").Services["traefik"]
	if s.Image != "traefik:"+traefikVersion(t) {
		t.Errorf("it runs %s, and the tests %s", s.Image, traefikVersion(t))
	}
	repository, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(s.Volumes, func(v types.ServiceVolumeConfig) bool {
		return v.Source == repository && v.Target == s.WorkingDir+"plugins-local/src/"+modulePath &&
			v.ReadOnly
	}) {
		t.Errorf("the plugin is not where Traefik looks for it: %+v", s.Volumes)
	}
	if !slices.Contains(s.Command, "--entryPoints.web.address=:"+strconv.Itoa(int(s.Ports[0].Target))) {
		t.Errorf("Traefik does not listen on %+v: %q", s.Ports, s.Command)
	}
}
