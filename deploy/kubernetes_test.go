package deploy

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

// manifest is a file for kubectl apply.
type manifest struct {
	secret      core.Secret
	config      core.ConfigMap
	deployment  apps.Deployment
	service     core.Service
	disruptions policy.PodDisruptionBudget
	account     core.ServiceAccount
	role        rbac.ClusterRole
	binding     rbac.ClusterRoleBinding
	middleware  middlewareResource
	route       routeResource
}

// middlewareResource and routeResource are as much of Traefik's custom resources as the file has.
// Other fields are errors.
type middlewareResource struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            struct {
		Plugin map[string]map[string]any `json:"plugin"`
	} `json:"spec"`
}

type routeResource struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            struct {
		EntryPoints []string `json:"entryPoints"`
		Routes      []struct {
			Kind        string `json:"kind"`
			Match       string `json:"match"`
			Middlewares []struct {
				Name string `json:"name"`
			} `json:"middlewares"`
			Services []struct {
				Name string `json:"name"`
				Port int    `json:"port"`
			} `json:"services"`
		} `json:"routes"`
	} `json:"spec"`
}

// readManifest decodes each object as its type. Names that the type does not have are errors.
func readManifest(t *testing.T, path string) *manifest {
	t.Helper()
	m := &manifest{}
	for _, text := range strings.Split(readFile(t, path), "\n---\n") {
		one := []byte(text)
		var head meta.TypeMeta
		if err := yaml.Unmarshal(one, &head); err != nil {
			t.Fatal(err)
		}
		into := map[string]any{
			"v1 Secret": &m.secret, "v1 ConfigMap": &m.config, "apps/v1 Deployment": &m.deployment,
			"v1 Service":                    &m.service,
			"policy/v1 PodDisruptionBudget": &m.disruptions, "v1 ServiceAccount": &m.account,
			"rbac.authorization.k8s.io/v1 ClusterRole":        &m.role,
			"rbac.authorization.k8s.io/v1 ClusterRoleBinding": &m.binding,
			"traefik.io/v1alpha1 Middleware":                  &m.middleware,
			"traefik.io/v1alpha1 IngressRoute":                &m.route,
		}[head.APIVersion+" "+head.Kind]
		if into == nil {
			t.Fatalf("%s: no test knows %+v", path, head)
		}
		if err := yaml.UnmarshalStrict(one, into); err != nil {
			t.Errorf("%s: %s: %v", path, head.Kind, err)
		}
	}
	return m
}

// container returns the only container of the pods.
func (m *manifest) container() core.Container { return m.deployment.Spec.Template.Spec.Containers[0] }

// port returns the number of a named container port.
func (m *manifest) port(t *testing.T, name intstr.IntOrString) int32 {
	t.Helper()
	for _, port := range m.container().Ports {
		if port.Name == name.StrVal {
			return port.ContainerPort
		}
	}
	t.Fatalf("the container has no port %s", name.StrVal)
	return 0
}

func TestManifestsFitTogether(t *testing.T) {
	for _, path := range []string{"kubernetes/caddy.yaml", "kubernetes/traefik.yaml"} {
		t.Run(path, func(t *testing.T) {
			m := readManifest(t, path)
			pod, c := m.deployment.Spec.Template, m.container()
			for what, selector := range map[string]*meta.LabelSelector{
				"Deployment": m.deployment.Spec.Selector, "PodDisruptionBudget": m.disruptions.Spec.Selector,
				"topology": pod.Spec.TopologySpreadConstraints[0].LabelSelector,
				"Service":  {MatchLabels: m.service.Spec.Selector},
			} {
				s, err := meta.LabelSelectorAsSelector(selector)
				if err != nil || s.Empty() || !s.Matches(labels.Set(pod.Labels)) {
					t.Errorf("the selector of the %s is %v, %v, want one of the pods, %v", what, selector,
						err,
						pod.Labels)
				}
			}
			if m.disruptions.Spec.MinAvailable.IntVal >= *m.deployment.Spec.Replicas {
				t.Errorf("minAvailable is %v, want below the %d replicas, so that a pod can be moved",
					m.disruptions.Spec.MinAvailable, *m.deployment.Spec.Replicas)
			}
			if c.EnvFrom[0].SecretRef.Name != m.secret.Name {
				t.Errorf("the environment is from the Secret %s, want %s", c.EnvFrom[0].SecretRef.Name,
					m.secret.Name)
			}
			dsn, err := pgx.ParseConfig(strings.ReplaceAll(m.secret.StringData["DATABASE_URL"],
				"CHANGE-ME", "changed"))
			if err != nil || dsn.Password != "changed" || dsn.TLSConfig == nil ||
				dsn.TLSConfig.InsecureSkipVerify {
				t.Errorf("the DSN: %v, want one with a password that verifies the server", err)
			}
			m.port(t, m.service.Spec.Ports[0].TargetPort)
			for what, probe := range map[string]*core.Probe{"startup": c.StartupProbe,
				"readiness": c.ReadinessProbe, "liveness": c.LivenessProbe} {
				if probe == nil || m.port(t, probe.HTTPGet.Port) == 0 ||
					probe.HTTPGet.Path != c.LivenessProbe.HTTPGet.Path {
					t.Errorf("the %s probe is %+v, want the path %s", what, probe,
						c.LivenessProbe.HTTPGet.Path)
				}
			}
			checkSecurity(t, pod.Spec)
			checkMounts(t, pod.Spec)
		})
	}
}

// checkSecurity checks what the restricted Pod Security Standard requires.
func checkSecurity(t *testing.T, pod core.PodSpec) {
	t.Helper()
	s := pod.SecurityContext
	if got, want := fmt.Sprint(*s.RunAsUser, ":", *s.RunAsGroup), ourImage(t).user; got != want {
		t.Errorf("the pod runs as %s, want %s, the user of the image", got, want)
	}
	if !*s.RunAsNonRoot || *s.FSGroup != *s.RunAsGroup ||
		s.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
		t.Errorf("the pod has %+v, want no root, the group's files, and the default seccomp profile", s)
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		if s := c.SecurityContext; *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem ||
			!slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) {
			t.Errorf("%s has %+v, want no privileges and a read-only file system", c.Name, s)
		}
	}
}

func checkMounts(t *testing.T, pod core.PodSpec) {
	t.Helper()
	mounted := map[string]bool{}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		for _, mount := range c.VolumeMounts {
			mounted[mount.Name] = true
			if !slices.ContainsFunc(pod.Volumes, func(v core.Volume) bool { return v.Name == mount.Name }) {
				t.Errorf("%s mounts the volume %s, which does not exist", c.Name, mount.Name)
			}
		}
	}
	if len(mounted) != len(pod.Volumes) {
		t.Errorf("the mounted volumes are %v, want all %d", mounted, len(pod.Volumes))
	}
}

func TestManifestRunsImageOfCaddy(t *testing.T) {
	m, i := readManifest(t, "kubernetes/caddy.yaml"), ourImage(t)
	c := m.container()
	if c.Image != "pg-ratelimit-caddy:"+tag || !slices.Equal(c.Args, i.command) {
		t.Errorf("the container runs %s with %q, want pg-ratelimit-caddy:%s with %q", c.Image, c.Args, tag,
			i.command)
	}
	paths := map[string]bool{}
	for _, mount := range c.VolumeMounts {
		paths[mount.MountPath] = true
	}
	for _, folder := range []string{i.env["XDG_DATA_HOME"], i.env["XDG_CONFIG_HOME"],
		filepath.Dir(c.Args[2])} {
		if !paths[folder] {
			t.Errorf("the mounts are %v, want one at %s", paths, folder)
		}
	}
	if volume := m.deployment.Spec.Template.Spec.Volumes[0]; volume.ConfigMap.Name != m.config.Name ||
		m.config.Data[filepath.Base(c.Args[2])] == "" {
		t.Errorf("the volume is %+v, want the Caddyfile of %s", volume, m.config.Name)
	}
	caddyfile := m.config.Data["Caddyfile"]
	for port, text := range map[int32]string{m.port(t, m.service.Spec.Ports[0].TargetPort): "http_port ",
		m.port(t, c.LivenessProbe.HTTPGet.Port): "http://:"} {
		if !strings.Contains(caddyfile, text+strconv.Itoa(int(port))+"\n") &&
			!strings.Contains(caddyfile, text+strconv.Itoa(int(port))+" {\n") {
			t.Errorf("the Caddyfile listens on other ports than %d:\n%s", port, caddyfile)
		}
	}
}

func TestManifestGivesTraefikPlugin(t *testing.T) {
	m := readManifest(t, "kubernetes/traefik.yaml")
	pod, c := m.deployment.Spec.Template.Spec, m.container()
	if c.Image != "traefik:"+traefikVersion(t) ||
		pod.InitContainers[0].Image != "pg-ratelimit-traefik-plugin:"+tag {
		t.Errorf("the pod runs %s and %s, want traefik:%s and pg-ratelimit-traefik-plugin:%s", c.Image,
			pod.InitContainers[0].Image, traefikVersion(t), tag)
	}
	for _, mounts := range [][]core.VolumeMount{pod.InitContainers[0].VolumeMounts, c.VolumeMounts} {
		if mounts[0].Name != "plugins" ||
			mounts[0].MountPath != filepath.Join(c.WorkingDir, "plugins-local") {
			t.Errorf("the plugin is at %+v, want plugins-local in %s", mounts, c.WorkingDir)
		}
	}
	for name, probed := range map[string]int32{"web": m.port(t, m.service.Spec.Ports[0].TargetPort),
		"traefik": m.port(t, c.LivenessProbe.HTTPGet.Port)} {
		if !slices.Contains(c.Args, "--entryPoints."+name+".address=:"+strconv.Itoa(int(probed))) {
			t.Errorf("the arguments of Traefik are %q, want the entry point %s at port %d", c.Args, name,
				probed)
		}
	}
	route := m.route.Spec.Routes[0]
	if !slices.Equal(m.route.Spec.EntryPoints, []string{"web"}) ||
		route.Middlewares[0].Name != m.middleware.Name || route.Kind != "Rule" ||
		m.route.Namespace != m.middleware.Namespace {
		t.Errorf("the route is %+v, want the middleware %s at the entry point web", m.route.Spec,
			m.middleware.Name)
	}
	if pod.ServiceAccountName != m.account.Name || m.binding.Subjects[0].Name != m.account.Name ||
		m.binding.Subjects[0].Namespace != m.account.Namespace ||
		m.binding.RoleRef.Name != m.role.Name || m.account.Namespace != m.deployment.Namespace {
		t.Errorf("the binding is %+v, want the role %s for the account %s", m.binding, m.role.Name,
			pod.ServiceAccountName)
	}
	last := m.role.Rules[len(m.role.Rules)-1]
	if last.APIGroups[0] != "traefik.io" || !slices.Contains(last.Resources, "middlewares") ||
		!slices.Contains(last.Resources, "ingressroutes") {
		t.Errorf("the last rule of the role is %+v, want middlewares and ingressroutes of traefik.io", last)
	}
}

// traefikVersion returns the tag of the Traefik image that the tests run.
func traefikVersion(t *testing.T) string {
	t.Helper()
	text := readFile(t, filepath.Join(root, "integration", "traefik", "go.mod"))
	version := regexp.MustCompile(`traefik/traefik/v3 (v\d+\.\d+)\.`).FindStringSubmatch(text)
	if version == nil {
		t.Fatal("integration/traefik/go.mod requires no Traefik")
	}
	return version[1]
}
