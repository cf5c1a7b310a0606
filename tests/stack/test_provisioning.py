"""What Grafana is given: files with keys that it reads, and names that fit together.

Grafana passes over a key that it does not know, so a slip of the pen would go unseen. The keys are those of
its Go structs (pkg/services/provisioning/datasources/types.go and dashboards/types.go), of the data sources'
own settings (PromOptions in packages/grafana-prometheus/src/types.ts, AlertManagerDataSourceJsonData), and of
conf/defaults.ini.
"""

import configparser
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.compose import FILE, REPOSITORY

PROVISIONING = REPOSITORY / "grafana" / "provisioning"
DASHBOARDS = REPOSITORY / "grafana" / "dashboards"

DATA_SOURCE = {
    *("name", "uid", "type", "access", "url", "orgId", "orgName", "version", "user", "database", "basicAuth"),
    *(
        "basicAuthUser",
        "withCredentials",
        "isDefault",
        "correlations",
        "jsonData",
        "secureJsonData",
        "editable",
    ),
}
SETTINGS = {
    "prometheus": {
        *("timeInterval", "queryTimeout", "httpMethod", "customQueryParameters", "disableMetricsLookup"),
        *(
            "exemplarTraceIdDestinations",
            "prometheusType",
            "prometheusVersion",
            "cacheLevel",
            "defaultEditor",
        ),
        *("incrementalQuerying", "disableRecordingRules", "manageAlerts", "alertmanagerUid"),
    },
    "alertmanager": {"implementation", "handleGrafanaManagedAlerts"},
}
PROVIDER = {
    *("name", "type", "orgId", "folder", "folderUid", "editable", "options", "disableDeletion"),
    *("updateIntervalSeconds", "allowUiUpdates"),
}
INI = {
    "security": {"disable_initial_admin_creation"},
    "auth.anonymous": {"enabled", "org_role"},
    "users": {"allow_sign_up"},
    "dashboards": {"default_home_dashboard_path"},
    "analytics": {"reporting_enabled", "check_for_updates", "check_for_plugin_updates"},
    "plugins": {"preinstall_disabled"},
    "news": {"news_feed_enabled"},
}


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


@pytest.fixture(scope="module")
def data_sources() -> dict[str, dict[str, Any]]:
    (file,) = (PROVISIONING / "datasources").iterdir()
    content = read(file)
    assert content.keys() == {"apiVersion", "datasources"}
    assert content["apiVersion"] == 1
    return {source["type"]: source for source in content["datasources"]}


@pytest.fixture(scope="module")
def provider() -> dict[str, Any]:
    (file,) = (PROVISIONING / "dashboards").iterdir()
    content = read(file)
    assert content.keys() == {"apiVersion", "providers"}
    (only,) = content["providers"]
    assert isinstance(only, dict)
    return only


@pytest.fixture(scope="module")
def grafana() -> dict[str, Any]:
    service = read(FILE)["services"]["grafana"]
    assert isinstance(service, dict)
    return service


def test_grafana_knows_every_key_of_the_data_sources(data_sources: dict[str, dict[str, Any]]) -> None:
    assert data_sources.keys() == SETTINGS.keys()
    for kind, source in data_sources.items():
        assert source.keys() <= DATA_SOURCE
        assert source["jsonData"].keys() <= SETTINGS[kind]
        assert source["access"] == "proxy"


def test_prometheus_has_its_scrape_interval_and_alertmanager_beside_it(
    data_sources: dict[str, dict[str, Any]],
) -> None:
    settings = data_sources["prometheus"]["jsonData"]
    scraped = read(REPOSITORY / "prometheus" / "compose.yml")["global"]
    assert settings["timeInterval"] == scraped["scrape_interval"]
    assert settings["alertmanagerUid"] == data_sources["alertmanager"]["uid"]
    assert data_sources["prometheus"]["uid"] == "stepscope-prometheus"
    assert data_sources["prometheus"]["isDefault"] is True


def test_every_variable_of_the_data_sources_is_set_to_a_service_of_the_stack(
    data_sources: dict[str, dict[str, Any]], grafana: dict[str, Any]
) -> None:
    services = read(FILE)["services"]
    for source in data_sources.values():
        (variable,) = re.findall(r"^\$(\w+)$", source["url"])
        host, port = re.findall(r"^http://([\w-]+):(\d+)$", grafana["environment"][variable])[0]
        assert services[host]["ports"][0].endswith(f":{port}")


def test_grafana_knows_every_key_of_the_provider_and_finds_the_dashboards_where_they_are_mounted(
    provider: dict[str, Any], grafana: dict[str, Any]
) -> None:
    assert provider.keys() <= PROVIDER
    assert provider["options"].keys() == {"path"}
    assert provider["folder"] == "Stepscope"
    assert f"./grafana/dashboards:{provider['options']['path']}:ro" in grafana["volumes"]


def test_grafana_ini_opens_the_cluster_to_who_comes_and_makes_no_account(
    provider: dict[str, Any], grafana: dict[str, Any]
) -> None:
    ini = configparser.ConfigParser(interpolation=None)
    ini.read_string((REPOSITORY / "grafana" / "grafana.ini").read_text())
    assert {section: set(ini[section]) for section in ini.sections()} == INI
    assert ini["security"].getboolean("disable_initial_admin_creation")
    assert ini["auth.anonymous"]["org_role"] == "Viewer"
    home = Path(ini["dashboards"]["default_home_dashboard_path"])
    assert str(home.parent) == provider["options"]["path"]
    assert (DASHBOARDS / home.name).exists()
    for variable in grafana["environment"]:
        assert variable.startswith("GF_") or variable.endswith("_URL")
