package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

// root is the folder of the repository, the build's context.
const root = ".."

// tag is the version in the names of our images.
var tag = strings.TrimPrefix(host.Version, "v")

// repository returns the path of the repository.
func repository(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// output returns the output of a command that must succeed, without white space at its ends.
func output(t *testing.T, command ...string) string {
	t.Helper()
	var stderr strings.Builder
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stderr = &stderr // apart: with an empty cache, Go names there what it downloads
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%q: %v\n%s%s", command, err, out, &stderr)
	}
	return strings.TrimSpace(string(out))
}

// readFile returns the text of a file.
func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// image is the result of the last stage of the Dockerfile.
type image struct {
	user    string
	env     map[string]string
	ports   []string
	command []string // without the entry point
	health  []string
}

// parseStages parses the Dockerfile with BuildKit's parser, and returns its stages.
func parseStages(t *testing.T) []instructions.Stage {
	t.Helper()
	file, err := os.Open("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	parsed, err := parser.Parse(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(parsed.Warnings) > 0 {
		t.Errorf("the Dockerfile has the warnings %+v, want none", parsed.Warnings)
	}
	stages, _, err := instructions.Parse(parsed.AST, nil)
	if err != nil {
		t.Fatal(err)
	}
	return stages
}

// stageNamed returns the stage with the name, or the last one if name is "".
func stageNamed(t *testing.T, name string) instructions.Stage {
	t.Helper()
	stages := parseStages(t)
	if name == "" {
		return stages[len(stages)-1]
	}
	i := slices.IndexFunc(stages, func(s instructions.Stage) bool { return s.Name == name })
	if i < 0 {
		t.Fatalf("the Dockerfile has no stage %s", name)
	}
	return stages[i]
}

// ourImage returns the image of Caddy, the last stage of the Dockerfile.
func ourImage(t *testing.T) image {
	t.Helper()
	i := image{env: map[string]string{}}
	for _, c := range stageNamed(t, "").Commands {
		switch c := c.(type) {
		case *instructions.UserCommand:
			i.user = c.User
		case *instructions.EnvCommand:
			for _, pair := range c.Env {
				i.env[pair.Key] = pair.Value
			}
		case *instructions.ExposeCommand:
			i.ports = append(i.ports, c.Ports...)
		case *instructions.CmdCommand:
			i.command = c.CmdLine
		case *instructions.HealthCheckCommand:
			i.health = c.Health.Test
		}
	}
	return i
}

// The image has no shell, only the Caddy of `make build`, certificates and folders. It runs Caddy as a user
// other than root, and has a health check.
func TestImageHasOnlyCaddyAndIsNotRoot(t *testing.T) {
	last, i := stageNamed(t, ""), ourImage(t)
	check.Equal(t, "the image's base", last.BaseName, "scratch")
	if !regexp.MustCompile(`^[1-9]\d*:[1-9]\d*$`).MatchString(i.user) {
		t.Errorf("the user of the image is %q, want numbers above 0: Kubernetes cannot see that a name is "+
			"not root", i.user)
	}
	var copied []string
	for _, c := range last.Commands {
		switch c := c.(type) {
		case *instructions.CopyCommand:
			check.Equal(t, c.String()+" copies from the stage", c.From, "build")
			if c.DestPath == "/" {
				check.Equal(t, "the owner of Caddy's folders", c.Chown, i.user)
			}
			copied = append(copied, c.SourcePaths...)
		case *instructions.RunCommand:
			t.Errorf("%s: scratch has no shell", c)
		case *instructions.EntrypointCommand:
			check.Equal(t, "the entry point", c.CmdLine, "[caddy]")
			check.Equal(t, "the entry point runs in a shell", c.PrependShell, false)
		}
	}
	// In the stage "build", the repository is in /src, and `make build` creates bin/caddy there.
	if !slices.Contains(copied, "/src/bin/caddy") ||
		!slices.Contains(copied, "/etc/ssl/certs/ca-certificates.crt") {
		t.Errorf("the image has %q, want the binary of make build and the certificates", copied)
	}
	check.Equal(t, "XDG_CONFIG_HOME", i.env["XDG_CONFIG_HOME"], "/config")
	check.Equal(t, "XDG_DATA_HOME", i.env["XDG_DATA_HOME"], "/data")
	check.Equal(t, "the health check's program", i.health[:min(2, len(i.health))], "[CMD caddy]")
}

// The stage "build" runs `make build`, in the image of the Go that xcaddy/go.mod requires.
func TestImageIsBuiltByMakeBuild(t *testing.T) {
	build := stageNamed(t, "build")
	module := readFile(t, filepath.Join(root, "xcaddy", "go.mod"))
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(module)
	if version == nil || build.BaseName != "golang:"+version[1] {
		t.Errorf("the image is built in %s, want the Go of xcaddy/go.mod, %q", build.BaseName, version)
	}
	makefile := readFile(t, filepath.Join(root, "Makefile"))
	text := ""
	for _, c := range build.Commands {
		if run, ok := c.(*instructions.RunCommand); ok {
			text += strings.Join(run.CmdLine, " ") + "\n"
		}
	}
	if !strings.Contains(text, "make build\n") {
		t.Errorf("the image is built by\n%s\nwant make build", text)
	}
	if !regexp.MustCompile(`(?m)^build:(\n|.)*-o \.\./bin/caddy`).MatchString(makefile) {
		t.Error("make build does not create bin/caddy")
	}
}

// pluginFiles returns the files and folders of the repository in the image of the plugin.
func pluginFiles(t *testing.T) (paths []string) {
	t.Helper()
	for _, c := range stageNamed(t, "plugin").Commands {
		if c, ok := c.(*instructions.CopyCommand); ok {
			for _, path := range c.SourcePaths {
				if _, err := os.Stat(filepath.Join(root, path)); err != nil {
					t.Error(err)
				}
				if c.DestPath != path && filepath.Clean(c.DestPath) != "." {
					t.Errorf("%s is copied to %s, want its place in the repository", path, c.DestPath)
				}
				paths = append(paths, path)
			}
		}
	}
	return paths
}

// The plugin's image contains the plugin's files, and copies them into the volume /plugins-local, as the user
// of Caddy's image.
func TestPluginImageCopiesPluginIntoVolume(t *testing.T) {
	var folder, user string
	var command []string
	for _, c := range stageNamed(t, "plugin").Commands {
		switch c := c.(type) {
		case *instructions.WorkdirCommand:
			folder = c.Path
		case *instructions.UserCommand:
			user = c.User
		case *instructions.CmdCommand:
			command = c.CmdLine
		}
	}
	check.Equal(t, "the plugin's folder", folder, "/plugin/src/"+modulePath)
	check.Equal(t, "the user", user, ourImage(t).user)
	check.Equal(t, "the command", command, "[cp -R /plugin/. /plugins-local]")
	if len(pluginFiles(t)) < 4 {
		t.Errorf("the image has only %q, want at least 4 files and folders", pluginFiles(t))
	}
}
