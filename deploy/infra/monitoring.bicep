@description('Part of the names of all resources.')
param suffix string

@description('Region of all resources.')
param location string

@description('Tags of all resources.')
param tags object

@description('Who gets the alerts; empty: they are only shown in the portal.')
param alertEmail string

// One place for the queries: the documentation shows them and the tests of the project read them there.
var alerts = loadJsonContent('../monitor/alerts.json')

resource workspace 'Microsoft.OperationalInsights/workspaces@2023-09-01' = {
  name: 'log-${suffix}'
  location: location
  tags: tags
  properties: {
    retentionInDays: 30
    sku: {
      name: 'PerGB2018'
    }
  }
}

resource insights 'Microsoft.Insights/components@2020-02-02' = {
  name: 'appi-${suffix}'
  location: location
  tags: tags
  kind: 'web'
  properties: {
    Application_Type: 'web'
    DisableLocalAuth: true
    WorkspaceResourceId: workspace.id
  }
}

resource operators 'Microsoft.Insights/actionGroups@2023-01-01' = if (!empty(alertEmail)) {
  name: 'ag-${suffix}'
  location: 'global'
  tags: tags
  properties: {
    enabled: true
    groupShortName: 'pollers'
    emailReceivers: [
      {
        name: 'operators'
        emailAddress: alertEmail
        useCommonAlertSchema: true
      }
    ]
  }
}

resource rule 'Microsoft.Insights/scheduledQueryRules@2023-12-01' = [for alert in alerts: {
  name: '${alert.name}-${suffix}'
  location: location
  tags: tags
  kind: 'LogAlert'
  properties: {
    displayName: alert.title
    description: alert.meaning
    severity: alert.severity
    enabled: true
    autoMitigate: true
    scopes: [workspace.id]
    evaluationFrequency: alert.every
    windowSize: alert.window
    criteria: {
      allOf: [
        {
          query: join(alert.query, '\n')
          timeAggregation: 'Count'
          operator: 'GreaterThan'
          threshold: 0
          dimensions: [
            {
              name: 'poller'
              operator: 'Include'
              values: ['*']
            }
          ]
          failingPeriods: {
            numberOfEvaluationPeriods: 1
            minFailingPeriodsToAlert: 1
          }
        }
      ]
    }
    actions: {
      actionGroups: empty(alertEmail) ? [] : [operators.id]
    }
  }
}]

resource workbook 'Microsoft.Insights/workbooks@2023-06-01' = {
  name: guid(workspace.id, 'pollers')
  location: location
  tags: tags
  kind: 'shared'
  properties: {
    displayName: 'Pollers'
    category: 'workbook'
    serializedData: loadTextContent('../monitor/workbook.json')
    sourceId: workspace.id
  }
}

output insightsName string = insights.name
