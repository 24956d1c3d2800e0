package deploy

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/jackc/pgx/v5"
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

// composeFiles are the files, and the service of each that limits.
var composeFiles = map[string]string{"caddy/compose.yaml": "caddy", "traefik/compose.yaml": "traefik"}

func TestComposeFilesNeedAPassword(t *testing.T) {
	for path := range composeFiles {
		if _, err := loadCompose(t, path); err == nil || !strings.Contains(err.Error(), "POSTGRES_PASSWORD") {
			t.Errorf("%s without a password: error %v, want one that names POSTGRES_PASSWORD", path, err)
		}
	}
}

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
				t.Errorf("the DSN is %s, want user, password and database of %v",
					*service.Environment["DATABASE_URL"], database.Environment)
			}
			if service.DependsOn["postgres"].Condition != types.ServiceConditionHealthy ||
				database.HealthCheck == nil {
				t.Errorf("the proxy depends on %v, want it to wait for a healthy server", service.DependsOn)
			}
			// From 18 on, the image keeps its data in a folder of the version below this one.
			if database.Image != "postgres:18" || len(database.Volumes) != 1 ||
				database.Volumes[0].Target != "/var/lib/postgresql" {
				t.Errorf("the server is %s, with the volumes %+v, want postgres:18 with one at "+
					"/var/lib/postgresql", database.Image, database.Volumes)
			}
			for name, s := range p.Services {
				if name != proxy && len(s.Ports) > 0 {
					t.Errorf("%s publishes %+v, want ports of the proxy only", name, s.Ports)
				}
			}
		})
	}
}

func TestComposeFileRunsImageOfCaddy(t *testing.T) {
	p, i := compose(t, "caddy/compose.yaml"), ourImage(t)
	s := p.Services["caddy"]
	if s.Build.Context != repository(t) || s.Build.Dockerfile != "deploy/Dockerfile" ||
		s.Image != "pg-ratelimit-caddy:"+tag {
		t.Errorf("the service builds %s from %s in %s, want pg-ratelimit-caddy:%s of deploy/ in %s",
			s.Image, s.Build.Dockerfile, s.Build.Context, tag, repository(t))
	}
	if len(s.Configs) != 1 || !slices.Contains(i.command, s.Configs[0].Target) {
		t.Errorf("the Caddyfile is at %+v, want where the image reads it: %q", s.Configs, i.command)
	}
	for _, volume := range s.Volumes {
		if volume.Target != i.env["XDG_DATA_HOME"] && volume.Target != i.env["XDG_CONFIG_HOME"] {
			t.Errorf("a volume is at %s, want one of Caddy's folders", volume.Target)
		}
	}
	if len(s.Volumes) != 2 {
		t.Errorf("the volumes are %+v, want two: the file system is read-only", s.Volumes)
	}
	for _, port := range s.Ports {
		if !slices.Contains(i.ports, strconv.Itoa(int(port.Target))) ||
			!strings.Contains(caddyfileOfCompose(t), "_port "+strconv.Itoa(int(port.Target))) {
			t.Errorf("the service publishes the port %d of the container, want one on which Caddy listens",
				port.Target)
		}
	}
}

func TestComposeFileGivesTraefikPlugin(t *testing.T) {
	s := compose(t, "traefik/compose.yaml").Services["traefik"]
	if s.Image != "traefik:"+traefikVersion(t) {
		t.Errorf("the service runs %s, want traefik:%s, as the tests do", s.Image, traefikVersion(t))
	}
	if !slices.ContainsFunc(s.Volumes, func(v types.ServiceVolumeConfig) bool {
		return v.Source == repository(t) && v.Target == s.WorkingDir+"plugins-local/src/"+modulePath &&
			v.ReadOnly
	}) {
		t.Errorf("the volumes are %+v, want the plugin where Traefik looks for it", s.Volumes)
	}
	if !slices.Contains(s.Command, "--entryPoints.web.address=:"+strconv.Itoa(int(s.Ports[0].Target))) {
		t.Errorf("the arguments of Traefik are %q, want the entry point web at %+v", s.Command, s.Ports)
	}
}
