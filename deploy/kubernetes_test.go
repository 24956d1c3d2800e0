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

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
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

// middlewareResource and routeResource are custom resources of Traefik. They have only the fields that the
// file has, so another field in the file is an error.
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

// readManifest decodes each object of a file as its type. A field that the type does not have is an error.
func readManifest(t *testing.T, path string) *manifest {
	t.Helper()
	m := &manifest{}
	for _, text := range strings.Split(readFile(t, path), "\n---\n") {
		data := []byte(text)
		var head meta.TypeMeta
		if err := yaml.Unmarshal(data, &head); err != nil {
			t.Fatal(err)
		}
		object := map[string]any{
			"v1 Secret": &m.secret, "v1 ConfigMap": &m.config, "apps/v1 Deployment": &m.deployment,
			"v1 Service":                    &m.service,
			"policy/v1 PodDisruptionBudget": &m.disruptions, "v1 ServiceAccount": &m.account,
			"rbac.authorization.k8s.io/v1 ClusterRole":        &m.role,
			"rbac.authorization.k8s.io/v1 ClusterRoleBinding": &m.binding,
			"traefik.io/v1alpha1 Middleware":                  &m.middleware,
			"traefik.io/v1alpha1 IngressRoute":                &m.route,
		}[head.APIVersion+" "+head.Kind]
		if object == nil {
			t.Fatalf("%s: no type for %+v", path, head)
		}
		if err := yaml.UnmarshalStrict(data, object); err != nil {
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

// In each manifest, all references lead to objects of the manifest: selectors to the pods, mounts to volumes,
// probes and the service to ports. The pods meet the restricted Pod Security Standard, the DSN requires TLS
// with a verified certificate, and a pod can be moved while another one runs.
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
					t.Errorf("the selector of the %s is %v, %v, want it to match %v", what, selector,
						err,
						pod.Labels)
				}
			}
			if m.disruptions.Spec.MinAvailable.IntVal >= *m.deployment.Spec.Replicas {
				t.Errorf("minAvailable is %v, want below the %d replicas, so that a pod can be moved",
					m.disruptions.Spec.MinAvailable, *m.deployment.Spec.Replicas)
			}
			check.Equal(t, "the environment's Secret", c.EnvFrom[0].SecretRef.Name, m.secret.Name)
			dsn, err := pgx.ParseConfig(strings.ReplaceAll(m.secret.StringData["DATABASE_URL"],
				"CHANGE-ME", "changed"))
			if err != nil || dsn.TLSConfig == nil {
				t.Fatalf("the DSN: error %v, want one with TLS", err)
			}
			check.Equal(t, "the DSN's password", dsn.Password, "changed")
			check.Equal(t, "the DSN skips the server's certificate", dsn.TLSConfig.InsecureSkipVerify, false)
			m.port(t, m.service.Spec.Ports[0].TargetPort)
			for what, probe := range map[string]*core.Probe{"startup": c.StartupProbe,
				"readiness": c.ReadinessProbe, "liveness": c.LivenessProbe} {
				m.port(t, probe.HTTPGet.Port)
				check.Equal(t, "the path of the "+what+" probe", probe.HTTPGet.Path,
					c.LivenessProbe.HTTPGet.Path)
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
	check.Equal(t, "the user and the group", fmt.Sprint(*s.RunAsUser, ":", *s.RunAsGroup), ourImage(t).user)
	check.Equal(t, "runAsNonRoot", *s.RunAsNonRoot, true)
	check.Equal(t, "the group of files", *s.FSGroup, *s.RunAsGroup)
	check.Equal(t, "the seccomp profile", s.SeccompProfile.Type, core.SeccompProfileTypeRuntimeDefault)
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		s := c.SecurityContext
		check.Equal(t, c.Name+": allowPrivilegeEscalation", *s.AllowPrivilegeEscalation, false)
		check.Equal(t, c.Name+": readOnlyRootFilesystem", *s.ReadOnlyRootFilesystem, true)
		check.Equal(t, c.Name+": the dropped capabilities", s.Capabilities.Drop, "[ALL]")
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
	check.Equal(t, "the number of mounted volumes", len(mounted), len(pod.Volumes))
}

// The manifest runs the image of deploy/Dockerfile with the image's command. It mounts the Caddyfile and
// volumes where the image expects them. The Caddyfile listens on the ports of the service and of the probes.
func TestManifestRunsImageOfCaddy(t *testing.T) {
	m, i := readManifest(t, "kubernetes/caddy.yaml"), ourImage(t)
	c := m.container()
	check.Equal(t, "the image", c.Image, "pg-ratelimit-caddy:"+tag)
	check.Equal(t, "the arguments", c.Args, i.command)
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
	volume := m.deployment.Spec.Template.Spec.Volumes[0]
	check.Equal(t, "the volume's ConfigMap", volume.ConfigMap.Name, m.config.Name)
	check.Equal(t, "the name of the Caddyfile", filepath.Base(c.Args[2]), "Caddyfile")
	caddyfile := m.config.Data["Caddyfile"]
	for _, want := range []string{
		fmt.Sprintf("http_port %d\n", m.port(t, m.service.Spec.Ports[0].TargetPort)),
		fmt.Sprintf("http://:%d {\n", m.port(t, c.LivenessProbe.HTTPGet.Port)),
	} {
		if !strings.Contains(caddyfile, want) {
			t.Errorf("the Caddyfile is\n%s\nwant %s", caddyfile, want)
		}
	}
}

// The manifest runs the Traefik that the tests run, with the plugin of our image in its folder. The route
// uses the middleware, and Traefik's account may read both.
func TestManifestGivesTraefikPlugin(t *testing.T) {
	m := readManifest(t, "kubernetes/traefik.yaml")
	pod, c := m.deployment.Spec.Template.Spec, m.container()
	check.Equal(t, "the image", c.Image, "traefik:"+traefikVersion(t))
	check.Equal(t, "the plugin's image", pod.InitContainers[0].Image, "pg-ratelimit-traefik-plugin:"+tag)
	for _, container := range []core.Container{pod.InitContainers[0], c} {
		mount, name := container.VolumeMounts[0], container.Name
		check.Equal(t, name+": the mounted volume", mount.Name, "plugins")
		check.Equal(t, name+": the folder", mount.MountPath, filepath.Join(c.WorkingDir, "plugins-local"))
	}
	for name, probed := range map[string]int32{"web": m.port(t, m.service.Spec.Ports[0].TargetPort),
		"traefik": m.port(t, c.LivenessProbe.HTTPGet.Port)} {
		if !slices.Contains(c.Args, "--entryPoints."+name+".address=:"+strconv.Itoa(int(probed))) {
			t.Errorf("the arguments of Traefik are %q, want the entry point %s at port %d", c.Args, name,
				probed)
		}
	}
	route := m.route.Spec.Routes[0]
	check.Equal(t, "the route's entry points", m.route.Spec.EntryPoints, "[web]")
	check.Equal(t, "the route's kind", route.Kind, "Rule")
	check.Equal(t, "the route's middleware", route.Middlewares[0].Name, m.middleware.Name)
	check.Equal(t, "the route's namespace", m.route.Namespace, m.middleware.Namespace)
	check.Equal(t, "the pod's account", pod.ServiceAccountName, m.account.Name)
	check.Equal(t, "the account's namespace", m.account.Namespace, m.deployment.Namespace)
	subject := m.binding.Subjects[0]
	check.Equal(t, "the binding's account", subject.Name, m.account.Name)
	check.Equal(t, "the namespace of the binding's account", subject.Namespace, m.account.Namespace)
	check.Equal(t, "the binding's role", m.binding.RoleRef.Name, m.role.Name)
	last := m.role.Rules[len(m.role.Rules)-1]
	check.Equal(t, "the API of the role's last rule", last.APIGroups[0], "traefik.io")
	for _, resource := range []string{"middlewares", "ingressroutes"} {
		if !slices.Contains(last.Resources, resource) {
			t.Errorf("the last rule of the role has %q, want %s", last.Resources, resource)
		}
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
